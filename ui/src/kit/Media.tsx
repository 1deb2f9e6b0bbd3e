// Pictures, videos, sound and text, as thumbnails and as a whole.

import { AudioLines, FileQuestion, FileText, ImageOff } from "lucide-react";
import { useEffect, useRef, useState } from "react";
import { here } from "@/api/client";
import { clock, common } from "@/texts/common";
import { classes } from "./classes";
import { useLasting } from "./lasting";
import styles from "./media.module.css";

export type MediaKind = "image" | "video" | "audio" | "text" | "other";

export function kindOf(mime: string): MediaKind {
  const [kind] = mime.split("/");
  return kind === "image" || kind === "video" || kind === "audio" || kind === "text" ? kind : "other";
}

export interface MediaFile {
  url: string;
  mime_type: string;
  poster_url?: string | null;
  preview_url?: string | null;
  seconds?: number | null;
}

interface MediaProps {
  file: MediaFile;
  /** What can be seen: said to readers. */
  name: string;
  /** Nothing is cut off, and the file itself is shown in place of its poster. */
  isWhole?: boolean;
  /** A video plays while the pointer is over it. */
  playsOnHover?: boolean;
}

export function Media({ file, name, isWhole = false, playsOnHover = !isWhole }: MediaProps) {
  const kind = kindOf(file.mime_type);
  const isPoster = !isWhole && Boolean(file.poster_url) && ["image", "video"].includes(kind);
  const { url, isGone, failed: gone, again } = useLasting((isPoster && file.poster_url) || file.url);
  // what could not be had while the network was away is asked for again
  const newest = useRef(again);
  newest.current = again;
  useEffect(() => {
    if (!isGone) return;
    const retry = () => newest.current();
    addEventListener("online", retry);
    return () => removeEventListener("online", retry);
  }, [isGone]);
  const shown = isPoster ? { ...file, poster_url: url } : { ...file, url };
  return (
    <div className={classes(styles.media, isWhole && styles.whole)}>
      {isGone ? (
        <Gone kind={kind} />
      ) : kind === "image" ? (
        <img src={here(url)} alt={name} loading="lazy" decoding="async" draggable={false} onError={gone} />
      ) : kind === "video" ? (
        <Video file={shown} name={name} isWhole={isWhole} playsOnHover={playsOnHover} onGone={gone} />
      ) : kind === "audio" ? (
        isWhole ? (
          <audio className={styles.audio} src={here(url)} controls preload="metadata" onError={gone} />
        ) : (
          <span className={styles.gone}>
            <AudioLines role="img" aria-label={name} />
          </span>
        )
      ) : kind === "text" ? (
        <Text url={url} onGone={gone} />
      ) : (
        <Gone kind={kind} />
      )}
      {!isWhole && typeof file.seconds === "number" && file.seconds > 0 && (
        <span className={styles.length}>{clock(file.seconds)}</span>
      )}
    </div>
  );
}

function Gone({ kind }: { kind: MediaKind }) {
  const Icon = kind === "other" ? FileQuestion : kind === "text" ? FileText : ImageOff;
  return (
    <span className={styles.gone}>
      <Icon aria-hidden />
      {kind === "other" ? common.media.noPreview : common.media.gone}
    </span>
  );
}

interface VideoProps {
  file: MediaFile;
  name: string;
  isWhole: boolean;
  playsOnHover: boolean;
  onGone: () => void;
}

function Video({ file, name, isWhole, playsOnHover, onGone }: VideoProps) {
  const [isOver, setOver] = useState(false);
  if (isWhole) {
    return (
      <video
        src={here(file.url)}
        poster={file.poster_url ? here(file.poster_url) : undefined}
        aria-label={name}
        controls
        loop
        playsInline
        preload="metadata"
        onError={onGone}
      />
    );
  }
  const over = playsOnHover ? { onPointerEnter: () => setOver(true), onPointerLeave: () => setOver(false) } : {};
  return (
    <span className={styles.over} {...over}>
      {file.poster_url ? (
        <img
          src={here(file.poster_url)}
          alt={name}
          loading="lazy"
          decoding="async"
          draggable={false}
          onError={onGone}
        />
      ) : (
        // without a poster the first picture of the file itself is shown
        <video
          src={`${here(file.url)}#t=0.01`}
          aria-label={name}
          muted
          playsInline
          preload="metadata"
          onError={onGone}
        />
      )}
      {isOver && (
        <video
          className={styles.over}
          src={here(file.preview_url ?? file.url)}
          aria-hidden
          autoPlay
          muted
          loop
          playsInline
          // without a preview of its own the picture below stays
          onError={() => setOver(false)}
        />
      )}
    </span>
  );
}

const MOST_SHOWN = 100_000;

function Text({ url, onGone }: { url: string; onGone: () => void }) {
  const [text, setText] = useState("");
  const newest = useRef(onGone);
  newest.current = onGone;
  useEffect(() => {
    const stop = new AbortController();
    fetch(here(url), { signal: stop.signal })
      .then(async (answer) => (answer.ok ? setText((await answer.text()).slice(0, MOST_SHOWN)) : newest.current()))
      .catch(() => !stop.signal.aborted && newest.current());
    return () => stop.abort();
  }, [url]);
  return <pre className={styles.text}>{text}</pre>;
}
