import { useEffect, useRef, useState } from "react";
import { here } from "@/api/client";
import { CompareSlider } from "@/kit/CompareSlider";
import { kindOf, Media } from "@/kit/Media";
import type { PlaybackSync } from "@/kit/playback-sync";
import styles from "./Compare.module.css";
import type { Item } from "./item";
import { useItem } from "./item-store";
import { nameOf } from "./Tile";

export function SliderView({ ids, sync }: { ids: readonly string[]; sync: PlaybackSync }) {
  const [a, b] = [useItem(ids[0] ?? ""), useItem(ids[1] ?? "")];
  if (!a || !b) return null;
  return (
    <div className={styles.sliding}>
      <CompareSlider
        before={<ComparedMedia item={a} sync={sync} />}
        after={<ComparedMedia item={b} sync={sync} />}
        beforeName={`A · ${nameOf(a)}`}
        afterName={`B · ${nameOf(b)}`}
      />
    </div>
  );
}

export function ComparedMedia({ item, sync }: { item: Item; sync: PlaybackSync }) {
  const video = useRef<HTMLVideoElement>(null);
  // keep the first URL: a new one would restart playback
  const [url] = useState(item.url);
  useEffect(() => (video.current ? sync.add(video.current) : undefined), [sync]);
  const kind = kindOf(item.mime_type);
  if (kind === "video") {
    return (
      <video
        ref={video}
        className={styles.compared}
        src={here(url)}
        poster={item.poster_url ? here(item.poster_url) : undefined}
        aria-label={nameOf(item)}
        muted
        playsInline
        preload="auto"
      />
    );
  }
  if (kind === "image") return <img className={styles.compared} src={here(url)} alt={nameOf(item)} draggable={false} />;
  return <Media file={{ ...item, url }} name={nameOf(item)} isWhole />;
}
