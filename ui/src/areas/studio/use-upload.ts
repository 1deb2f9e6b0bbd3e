// Upload of one file: progress, cancel, and retries while the network is down.

import { useCallback, useEffect, useRef, useState } from "react";
import { Problem, sentence } from "@/api/problem";
import { upload as uploadFile } from "@/api/uploads";
import { useLatest } from "@/lib/use-latest";
import { useLiveState } from "@/live";
import { studio } from "@/texts/studio";

export interface FileUpload {
  /** `cut`: the connection was lost, a retry follows. `refused`: the server rejected the file. */
  state: "sending" | "cut" | "refused" | "sent";
  file: File;
  /** Object URL for the preview. */
  url: string;
  /** From 0 to 1. */
  part: number;
  problem: string | null;
  id: string | null;
}

const FIRST_MS = 2000;
const LONGEST_MS = 60_000;
/** While the server is up, the upload fails after so many lost connections. */
const MAX_CUTS = 2;
/** Delay before the next attempt, after so many lost ones. */
export const retryDelay = (attempts: number): number => Math.min(LONGEST_MS, FIRST_MS * 2 ** attempts);

export interface Uploader {
  upload: FileUpload | null;
  start: (file: File) => void;
  retry: () => void;
  cancel: () => void;
}

export function useUpload(): Uploader {
  const [upload, setUpload] = useState<FileUpload | null>(null);
  const stop = useRef<AbortController | null>(null);
  const latest = useLatest(upload);
  const live = useLiveState();
  const liveState = useLatest(live);
  const attempts = useRef(0);

  const send = useCallback(
    (file: File, url: string) => {
      stop.current?.abort();
      const own = new AbortController();
      stop.current = own;
      const begun: FileUpload = { state: "sending", file, url, part: 0, problem: null, id: null };
      const change = (part: Partial<FileUpload>) =>
        // ignore uploads that were canceled or restarted
        !own.signal.aborted && setUpload((before) => (before ? { ...before, ...part } : before));
      setUpload(begun);
      uploadFile(file, { onProgress: (part) => change({ part }), signal: own.signal }).then(
        ({ id }) => change({ state: "sent", part: 1, id }),
        (thrown: unknown) => {
          const isAway = thrown instanceof Problem && thrown.isAway;
          // without permission for this page (CORS), a browser only says that the storage is unreachable
          const isForbidden = isAway && liveState.current === "live" && attempts.current >= MAX_CUTS;
          const isCut = !isForbidden && (isAway || (thrown instanceof Problem && thrown.status === 503));
          const problem = isForbidden ? studio.effect.storageAway : sentence(thrown);
          change({ state: isCut ? "cut" : "refused", problem });
        },
      );
    },
    [liveState],
  );

  const cancel = useCallback(() => {
    stop.current?.abort();
    if (latest.current) URL.revokeObjectURL(latest.current.url);
    setUpload(null);
  }, [latest]);

  const start = useCallback(
    (file: File) => {
      if (latest.current) URL.revokeObjectURL(latest.current.url);
      send(file, URL.createObjectURL(file));
    },
    [send, latest],
  );

  const retry = useCallback(() => {
    const { current } = latest;
    if (current && current.state !== "sending") send(current.file, current.url);
  }, [send, latest]);

  const isCut = upload?.state === "cut";
  // the storage may be down while the server is up, and no event says when it is back
  useEffect(() => {
    if (upload?.state === "sent" || !upload) attempts.current = 0;
    if (!isCut) return;
    const timer = setTimeout(retry, retryDelay(attempts.current));
    attempts.current += 1;
    return () => clearTimeout(timer);
  }, [isCut, retry, upload]);
  const wasAway = useRef(false);
  useEffect(() => {
    if (!isCut) wasAway.current = false;
    else if (live !== "live") wasAway.current = true;
    else if (wasAway.current) retry();
  }, [isCut, live, retry]);
  useEffect(() => {
    if (!isCut) return;
    addEventListener("online", retry);
    return () => removeEventListener("online", retry);
  }, [isCut, retry]);

  // leaving the page cancels it
  useEffect(
    () => () => {
      stop.current?.abort();
      if (latest.current) URL.revokeObjectURL(latest.current.url);
    },
    [latest],
  );
  return { upload, start, retry, cancel };
}
