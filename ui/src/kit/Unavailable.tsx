import { FileQuestion, FileText, ImageOff } from "lucide-react";
import { useEffect, useState } from "react";
import { here } from "@/api/client";
import { common } from "@/texts/common";
import { classes } from "./classes";
import type { MediaKind } from "./Media";
import styles from "./Unavailable.module.css";

type Reason = "gone" | "unreachable" | "noPreview";

/** Media elements do not tell why a file failed to load, so one byte of it is requested. */
function useReason(url: string | undefined): Reason | null {
  const [found, setFound] = useState<{ url: string; reason: Reason } | null>(null);
  useEffect(() => {
    if (url === undefined) return;
    const stop = new AbortController();
    fetch(here(url), { signal: stop.signal, headers: { Range: "bytes=0-0" } })
      .then(async ({ ok, status, body }) => {
        await body?.cancel();
        setFound({ url, reason: ok ? "noPreview" : [404, 410].includes(status) ? "gone" : "unreachable" });
      })
      .catch(() => !stop.signal.aborted && setFound({ url, reason: "unreachable" }));
    return () => stop.abort();
  }, [url]);
  return found?.url === url ? (found?.reason ?? null) : null;
}

interface UnavailableProps {
  kind: MediaKind;
  /** Not given if the file is known to be missing. */
  url?: string | undefined;
  className?: string;
}

/** Replaces a file that cannot be shown, and says why. */
export function Unavailable({ kind, url, className }: UnavailableProps) {
  const isOther = kind === "other";
  const reason = useReason(isOther ? undefined : url);
  const shown = isOther ? "noPreview" : url === undefined ? "gone" : reason;
  const Icon = isOther ? FileQuestion : kind === "text" ? FileText : ImageOff;
  return (
    <span className={classes(styles.unavailable, className)}>
      <Icon aria-hidden />
      {shown && common.media[shown]}
    </span>
  );
}
