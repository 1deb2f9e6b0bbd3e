import { AudioLines, Clapperboard, FileText, Image, type LucideIcon, Sparkles } from "lucide-react";
import { type CSSProperties, useState } from "react";
import { here } from "@/api/client";
import type { Effect } from "@/api/types";
import { kindOf, type MediaKind } from "@/kit/Media";
import styles from "./Cover.module.css";
import { isVideoUrl, placeholderHue } from "./queries";

export const KIND_ICONS: Readonly<Record<MediaKind, LucideIcon>> = {
  image: Image,
  video: Clapperboard,
  audio: AudioLines,
  text: FileText,
  other: Sparkles,
};

type Covered = Pick<Effect, "slug" | "output_mime_type" | "preview_url"> & Partial<Pick<Effect, "cover_url">>;

/** Preview of an effect, else its last output, else a placeholder. */
export function Cover({ effect }: { effect: Covered }) {
  const [gone, setGone] = useState<readonly string[]>([]);
  const url = [effect.preview_url, effect.cover_url].find((each) => each && !gone.includes(each));
  if (!url) return <Placeholder hueKey={effect.slug} kind={kindOf(effect.output_mime_type)} />;
  const lost = () => setGone((before) => [...before, url]);
  return isVideoUrl(url) ? (
    <Film url={here(url)} onError={lost} />
  ) : (
    <img className={styles.picture} data-cover src={here(url)} alt="" loading="lazy" decoding="async" onError={lost} />
  );
}

/** Plays while its card is hovered or focused. */
function Film({ url, onError }: { url: string; onError: () => void }) {
  return (
    <video
      className={styles.picture}
      data-cover
      src={`${url}#t=0.01`}
      aria-hidden
      muted
      loop
      playsInline
      preload="metadata"
      onError={onError}
      ref={(video) => {
        const card = video?.closest("a");
        if (!video || !card) return;
        const play = () => void video.play().catch(() => undefined);
        const rest = () => video.pause();
        for (const each of ["pointerenter", "focus"]) card.addEventListener(each, play);
        for (const each of ["pointerleave", "blur"]) card.addEventListener(each, rest);
        return () => {
          for (const each of ["pointerenter", "focus"]) card.removeEventListener(each, play);
          for (const each of ["pointerleave", "blur"]) card.removeEventListener(each, rest);
        };
      }}
    />
  );
}

export function Placeholder({ hueKey, kind }: { hueKey: string; kind: MediaKind }) {
  const Icon = KIND_ICONS[kind];
  return (
    <span className={styles.placeholder} style={{ "--hue": placeholderHue(hueKey) } as CSSProperties} aria-hidden>
      <Icon strokeWidth={1.4} />
    </span>
  );
}
