import { here } from "@/api/client";
import type { Effect } from "@/api/types";
import { studio } from "@/texts/studio";
import { Cover } from "./Cover";
import styles from "./Example.module.css";
import { isVideoUrl } from "./queries";

const texts = studio.effect;

/** The example of an effect: its output, next to the input if there is one. */
export function Example({ effect }: { effect: Effect }) {
  const { before_url: before } = effect;
  if (!before)
    return (
      <div className={styles.only}>
        <Cover effect={effect} />
      </div>
    );
  return (
    <div className={styles.pair}>
      <figure>
        {isVideoUrl(before) ? (
          <video src={here(before)} aria-label={texts.before} controls muted playsInline preload="metadata" />
        ) : (
          <img src={here(before)} alt="" decoding="async" />
        )}
        <figcaption>{texts.before}</figcaption>
      </figure>
      <figure>
        <Cover effect={effect} />
        <figcaption>{texts.afterwards}</figcaption>
      </figure>
    </div>
  );
}
