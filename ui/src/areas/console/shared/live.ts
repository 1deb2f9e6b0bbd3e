// One event stream for all console pages: it names the queries to invalidate. Without a stream, the pages poll.

import { type QueryClient, useQueryClient } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { parse } from "@/api/json";
import { openShared, type Source } from "@/live/shared-stream";

export const PATH = "/api/admin/events";
export const POLL_MS = 15_000;
export const AGAIN_MS = 15_000;
/** Events within this time are handled together. */
export const SETTLE_MS = 700;

/** Query keys. The second part is the name used by the stream, the third may be an id. */
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

/** `workers: ["gpu-1"]` names the changed ids; `dispatches: true` means any. */
export type Changed = Readonly<Record<string, boolean | readonly (string | number)[] | null | undefined>>;

/** `workers` -> `worker`, `dispatches` -> `dispatch`. */
const oneOf = (word: string): string => word.replace(/(?<=ch)es$|s$/, "");

/** Whether an event invalidates a query. */
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

/** `*` matches every id. */
const namesIt = (named: string, id: string): boolean => named === id || named === "*";

const EVERYTHING: Changed = { everything: true };

/** Merges two events. */
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
      // the browser does not retry
      source.close();
      clearTimeout(this.again);
      this.again = setTimeout(() => this.start(), AGAIN_MS);
    };
    source.addEventListener("changed", (event) => {
      const { data } = event as MessageEvent<string>;
      this.due = together(this.due, parse(data) as Changed);
      this.soon();
    });
    // sent first, too: earlier changes were not reported
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

  /** Waits for running refetches, so that frequent events do not restart them. */
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

/** Subscribes to the stream while the console is open. */
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
