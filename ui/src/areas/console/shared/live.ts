// What changes on the server reaches the pages of the console: one stream, heard in the frame around all of them, says
// which of what was fetched is old. Without a stream everything that is looked at is fetched again and again.

import { type QueryClient, useQueryClient } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { parse } from "@/api/json";
import { openShared, type Source } from "@/live/shared-stream";

export const PATH = "/api/admin/events";
export const POLL_MS = 15_000;
export const AGAIN_MS = 15_000;
/** What is told of meanwhile is fetched together. */
export const SETTLE_MS = 700;

/** What pages fetch. The second word of a key is what the stream calls it; the third may be an id. */
export const consoleKeys = {
  all: ["console"] as const,
  samples: ["console", "samples"] as const,
  workers: ["console", "workers"] as const,
  worker: (id: string) => ["console", "worker", id] as const,
  fleets: ["console", "fleets"] as const,
  fleet: (stage: string, slug: string) => ["console", "fleet", `${stage}/${slug}`] as const,
  dispatches: ["console", "dispatches"] as const,
  dispatch: (id: string) => ["console", "dispatch", id] as const,
};

/** `workers: ["gpu-1"]`, `dispatches: true`: ids of what changed, or that something of it did. */
export type Changed = Readonly<Record<string, boolean | readonly (string | number)[] | null | undefined>>;

/** `worker` of `workers`, `dispatch` of `dispatches`. */
const oneOf = (word: string): string => word.replace(/(?<=ch)es$|s$/, "");

/** Whether what was fetched under this key is old now. */
export function isOld(queryKey: readonly unknown[], changed: Changed): boolean {
  const [area, word, id] = queryKey;
  if (area !== "console") return false;
  if (changed.everything) return true;
  return Object.entries(changed).some(([name, what]) => {
    if (!what || (Array.isArray(what) && what.length === 0)) return false;
    if (word === name) return true;
    if (word !== oneOf(name)) return false;
    return what === true || (what as readonly unknown[]).some((each) => namesIt(String(each), String(id)));
  });
}

/** `*` is any of them. */
const namesIt = (named: string, id: string): boolean => named === id || named === "*";

const EVERYTHING: Changed = { everything: true };

/** Both say that something changed; ids are those of either. */
export function together(one: Changed, other: Changed): Changed {
  const both: Record<string, boolean | readonly (string | number)[]> = {};
  for (const name of new Set([...Object.keys(one), ...Object.keys(other)])) {
    const [first, second] = [one[name] ?? false, other[name] ?? false];
    if (Array.isArray(first) && Array.isArray(second)) both[name] = [...new Set([...first, ...second])];
    else if (first === true || second === true) both[name] = true;
    else both[name] = first || second;
  }
  return both;
}

export type StreamState = "connecting" | "live" | "polling";

export class ConsoleStream {
  private source: Source | undefined;
  private due: Changed = {};
  private settling: ReturnType<typeof setTimeout> | undefined;
  private polling: ReturnType<typeof setInterval> | undefined;
  private again: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly client: QueryClient,
    private readonly become: (state: StreamState) => void,
    private readonly open: (path: string) => Source = openShared,
  ) {}

  start(): void {
    const source = this.open(PATH);
    this.source = source;
    source.onopen = () => {
      this.stopPolling();
      this.become("live");
    };
    source.onerror = () => {
      this.become("polling");
      this.poll();
      if (source.readyState !== source.CLOSED) return;
      // the browser has given up
      source.close();
      clearTimeout(this.again);
      this.again = setTimeout(() => this.start(), AGAIN_MS);
    };
    source.addEventListener("changed", (event) => {
      const { data } = event as MessageEvent<string>;
      this.due = together(this.due, parse(data) as Changed);
      this.soon();
    });
    // comes first, too: what happened before it began was not told
    source.addEventListener("reset", () => {
      this.due = EVERYTHING;
      this.soon();
    });
  }

  stop(): void {
    this.source?.close();
    this.stopPolling();
    clearTimeout(this.settling);
    clearTimeout(this.again);
  }

  private soon(): void {
    this.settling ??= setTimeout(() => void this.settle(), SETTLE_MS);
  }

  /** What takes long to fetch is not begun anew by each event: the next round waits for this one. */
  private async settle(): Promise<void> {
    const { due } = this;
    this.due = {};
    await this.client.invalidateQueries({ predicate: ({ queryKey }) => isOld(queryKey, due) });
    this.settling = undefined;
    if (Object.keys(this.due).length) this.soon();
  }

  private readonly reset = (): void => void this.client.invalidateQueries({ queryKey: consoleKeys.all });

  private poll(): void {
    this.polling ??= setInterval(() => {
      if (!document.hidden) this.reset();
    }, POLL_MS);
  }

  private stopPolling(): void {
    clearInterval(this.polling);
    this.polling = undefined;
  }
}

/** Hears the stream while the frame of the console is shown; the pages in it need nothing but their keys. */
export function useConsoleLive(): StreamState {
  const client = useQueryClient();
  const [state, setState] = useState<StreamState>("connecting");
  useEffect(() => {
    const stream = new ConsoleStream(client, setState);
    stream.start();
    return () => stream.stop();
  }, [client]);
  return state;
}
