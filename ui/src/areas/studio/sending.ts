// One file on its way to the storage: how far it is, and what to do when the network is cut.

import { useCallback, useEffect, useRef, useState } from "react";
import { Problem, sentence } from "@/api/problem";
import { upload } from "@/api/uploads";
import { useLiveState } from "@/live";

export interface Sending {
  /** `cut`: the network was; it starts again by itself. `refused`: the server does not take it. */
  state: "sending" | "cut" | "refused" | "sent";
  file: File;
  /** Where it can be seen, in this page. */
  url: string;
  /** From 0 to 1. */
  part: number;
  problem: string | null;
  /** Once it is there. */
  id: string | null;
}

const FIRST_MS = 2000;
const LONGEST_MS = 60_000;
/** How long to wait before the next try, after so many that were cut. */
export const againIn = (tries: number): number => Math.min(LONGEST_MS, FIRST_MS * 2 ** tries);

export interface Sender {
  sending: Sending | null;
  start: (file: File) => void;
  retry: () => void;
  cancel: () => void;
}

export function useSending(): Sender {
  const [sending, setSending] = useState<Sending | null>(null);
  const stop = useRef<AbortController | null>(null);
  const newest = useRef(sending);
  newest.current = sending;

  const send = useCallback((file: File, url: string) => {
    stop.current?.abort();
    const own = new AbortController();
    stop.current = own;
    const begun: Sending = { state: "sending", file, url, part: 0, problem: null, id: null };
    const change = (part: Partial<Sending>) =>
      // what was canceled, or started again, says nothing more
      !own.signal.aborted && setSending((before) => (before ? { ...before, ...part } : before));
    setSending(begun);
    upload(file, { onProgress: (part) => change({ part }), signal: own.signal }).then(
      ({ id }) => change({ state: "sent", part: 1, id }),
      (thrown: unknown) => {
        const isCut = thrown instanceof Problem && (thrown.isAway || thrown.status === 503);
        change({ state: isCut ? "cut" : "refused", problem: sentence(thrown) });
      },
    );
  }, []);

  const cancel = useCallback(() => {
    stop.current?.abort();
    if (newest.current) URL.revokeObjectURL(newest.current.url);
    setSending(null);
  }, []);

  const start = useCallback(
    (file: File) => {
      if (newest.current) URL.revokeObjectURL(newest.current.url);
      send(file, URL.createObjectURL(file));
    },
    [send],
  );

  const retry = useCallback(() => {
    const { current } = newest;
    if (current && current.state !== "sending") send(current.file, current.url);
  }, [send]);

  const live = useLiveState();
  const isCut = sending?.state === "cut";
  // storage may be away though the server is there, and nothing says when it is back
  const tries = useRef(0);
  useEffect(() => {
    if (sending?.state === "sent" || !sending) tries.current = 0;
    if (!isCut) return;
    const timer = setTimeout(retry, againIn(tries.current));
    tries.current += 1;
    return () => clearTimeout(timer);
  }, [isCut, retry, sending]);
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

  // who leaves the page wants it no more
  useEffect(
    () => () => {
      stop.current?.abort();
      if (newest.current) URL.revokeObjectURL(newest.current.url);
    },
    [],
  );
  return { sending, start, retry, cancel };
}
