import { type ReactNode, useEffect, useState } from "react";
import styles from "./LivePreview.module.css";

const POLL_MS = 1000;

/** The URL of the newest preview of a running job, or null. Polled once a second while the tab is visible. */
export function useLivePreview(id: string | null): string | null {
  const [url, setUrl] = useState<string | null>(null);
  useEffect(() => {
    if (!id) return;
    const stop = new AbortController();
    let [etag, shown] = ["", ""];
    let timer: ReturnType<typeof setTimeout>;
    const poll = async () => {
      try {
        if (!document.hidden) {
          const answer = await fetch(`/api/ai-jobs/${encodeURIComponent(id)}/preview`, {
            headers: etag ? { "If-None-Match": etag } : {},
            cache: "no-store",
            signal: stop.signal,
          });
          if (answer.status === 200) {
            etag = answer.headers.get("ETag") ?? "";
            const next = URL.createObjectURL(await answer.blob());
            if (shown) URL.revokeObjectURL(shown);
            shown = next;
            if (!stop.signal.aborted) setUrl(next);
          }
        }
      } catch {
        // the next poll tries again
      }
      if (!stop.signal.aborted) timer = setTimeout(() => void poll(), POLL_MS);
    };
    void poll();
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
  /** Shown until there is a preview. */
  children?: ReactNode;
}

export function LivePreview({ id, name, children }: LivePreviewProps) {
  const url = useLivePreview(id);
  return url ? <img className={styles.preview} src={url} alt={name} data-live /> : children;
}
