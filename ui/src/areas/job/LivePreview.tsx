import { type ReactNode, useEffect, useState } from "react";
import styles from "./viewer.module.css";

const EVERY_MS = 1000;

/** The newest picture of a job that runs, asked for once a second while somebody looks; null while there is none. */
export function useLivePreview(id: string | null): string | null {
  const [url, setUrl] = useState<string | null>(null);
  useEffect(() => {
    if (!id) return;
    const stop = new AbortController();
    let [tag, shown] = ["", ""];
    let timer: ReturnType<typeof setTimeout>;
    const ask = async () => {
      try {
        if (!document.hidden) {
          const answer = await fetch(`/api/ai-jobs/${encodeURIComponent(id)}/preview`, {
            headers: tag ? { "If-None-Match": tag } : {},
            cache: "no-store",
            signal: stop.signal,
          });
          if (answer.status === 200) {
            tag = answer.headers.get("ETag") ?? "";
            const next = URL.createObjectURL(await answer.blob());
            if (shown) URL.revokeObjectURL(shown);
            shown = next;
            if (!stop.signal.aborted) setUrl(next);
          }
        }
      } catch {
        // the next one may come
      }
      if (!stop.signal.aborted) timer = setTimeout(() => void ask(), EVERY_MS);
    };
    void ask();
    return () => {
      stop.abort();
      clearTimeout(timer);
      if (shown) URL.revokeObjectURL(shown);
      setUrl(null);
    };
  }, [id]);
  return url;
}

interface LivePreviewProps {
  id: string;
  name: string;
  /** Shown until there is one. */
  children?: ReactNode;
}

export function LivePreview({ id, name, children }: LivePreviewProps) {
  const url = useLivePreview(id);
  return url ? <img className={styles.preview} src={url} alt={name} data-live /> : children;
}
