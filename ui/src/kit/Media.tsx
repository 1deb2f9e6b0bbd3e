// Images, videos, audio and text, as thumbnails or in full.

import { AudioLines } from "lucide-react";
import { useEffect, useState } from "react";
import { here } from "@/api/client";
import { useLatest } from "@/lib/use-latest";
import { clock } from "@/texts/common";
import { classes } from "./classes";
import { useFileUrl } from "./file-url";
import styles from "./Media.module.css";
import { Unavailable } from "./Unavailable";

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
  /** Alternative text. */
  name: string;
  /** Shows the whole file, uncropped, instead of its poster. */
  isWhole?: boolean;
  /** Plays a video while the pointer is over it. */
  playsOnHover?: boolean;
}

export function Media({ file, name, isWhole = false, playsOnHover = !isWhole }: MediaProps) {
  const kind = kindOf(file.mime_type);
  const isPoster = !isWhole && Boolean(file.poster_url) && ["image", "video"].includes(kind);
  const { url, isBroken, onError, retry } = useFileUrl((isPoster && file.poster_url) || file.url);
  const latestRetry = useLatest(retry);
  useEffect(() => {
    if (!isBroken) return;
    const retryOnline = () => latestRetry.current();
    addEventListener("online", retryOnline);
    return () => removeEventListener("online", retryOnline);
  }, [isBroken, latestRetry]);
  const shown = isPoster ? { ...file, poster_url: url } : { ...file, url };
  return (
    <div className={classes(styles.media, isWhole && styles.whole)}>
      {isBroken ? (
        <Unavailable kind={kind} url={url} />
      ) : kind === "image" ? (
        <img src={here(url)} alt={name} loading="lazy" decoding="async" draggable={false} onError={onError} />
      ) : kind === "video" ? (
        <Video file={shown} name={name} isWhole={isWhole} playsOnHover={playsOnHover} onError={onError} />
      ) : kind === "audio" ? (
        isWhole ? (
          <audio className={styles.audio} src={here(url)} controls preload="metadata" onError={onError} />
        ) : (
          <span className={styles.sound}>
            <AudioLines role="img" aria-label={name} />
          </span>
        )
      ) : kind === "text" ? (
        <Text url={url} onError={onError} />
      ) : (
        <Unavailable kind={kind} />
      )}
      {!isWhole && typeof file.seconds === "number" && file.seconds > 0 && (
        <span className={styles.length}>{clock(file.seconds)}</span>
      )}
    </div>
  );
}

interface VideoProps {
  file: MediaFile;
  name: string;
  isWhole: boolean;
  playsOnHover: boolean;
  onError: () => void;
}

function Video({ file, name, isWhole, playsOnHover, onError }: VideoProps) {
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
        onError={onError}
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
          onError={onError}
        />
      ) : (
        // without a poster, show the first frame
        <video
          src={`${here(file.url)}#t=0.01`}
          aria-label={name}
          muted
          playsInline
          preload="metadata"
          onError={onError}
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
          // keep the poster visible
          onError={() => setOver(false)}
        />
      )}
    </span>
  );
}

const MAX_CHARACTERS = 100_000;

function Text({ url, onError }: { url: string; onError: () => void }) {
  const [text, setText] = useState("");
  const latest = useLatest(onError);
  useEffect(() => {
    const stop = new AbortController();
    fetch(here(url), { signal: stop.signal })
      .then(async (answer) => (answer.ok ? setText((await answer.text()).slice(0, MAX_CHARACTERS)) : latest.current()))
      .catch(() => !stop.signal.aborted && latest.current());
    return () => stop.abort();
  }, [url, latest]);
  return <pre className={styles.text}>{text}</pre>;
}
