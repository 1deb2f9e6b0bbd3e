import { useRef, useState } from "react";
import { here } from "@/api/client";
import { classes } from "@/kit";
import { kindOf, Media } from "@/kit/Media";
import { Player } from "@/kit/Player";
import styles from "./FullMedia.module.css";
import type { Item } from "./item";
import { items } from "./item-store";
import { nameOf } from "./Tile";

/** The file itself, over its poster while it loads. */
export function FullMedia({ item }: { item: Item }) {
  const [brokenUrl, setBrokenUrl] = useState<string | null>(null);
  const isGone = brokenUrl === item.url;
  const hasRetried = useRef(false);
  // not `item`: its URL changes with each refetch, which would restart playback
  const [file, setFile] = useState(item);
  const kind = kindOf(item.mime_type);
  const handleError = () => {
    if (hasRetried.current) setBrokenUrl(item.url);
    else {
      hasRetried.current = true;
      void items.renew([item.id]).then(() => setFile(items.get(item.id) ?? item));
    }
  };
  const name = nameOf(item);
  if (kind === "image" && !isGone) {
    return (
      <div className={styles.picture}>
        {item.poster_url && <img src={here(file.poster_url ?? "")} alt="" aria-hidden draggable={false} />}
        <img src={here(file.url)} alt={name} decoding="async" draggable={false} onError={handleError} />
      </div>
    );
  }
  if (kind === "video" && !isGone) {
    return (
      <div className={styles.playing} onErrorCapture={handleError}>
        <Player file={file} name={name} autoPlay />
      </div>
    );
  }
  return (
    <div className={classes(styles.other, kind === "text" && styles.reading)}>
      {kind === "audio" && <strong>{name}</strong>}
      <Media file={file} name={name} isWhole />
    </div>
  );
}
