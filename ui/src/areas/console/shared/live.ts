// The event stream of all console pages. Its events name the queries to invalidate. Without a stream, the pages poll.

import { type QueryClient, useQueryClient } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { parse } from "@/api/json";
import { openShared, type Source } from "@/live/shared-stream";

export const PATH = "/api/admin/events";
export const POLL_MS = 15_000;
export const RECONNECT_MS = 15_000;
/** Changes within this time are merged. */
export const SETTLE_MS = 700;

/** Query keys. The second part is the name that the stream uses. The third may be an id. */
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

/** `workers: ["gpu-1"]` names the changed ids. `dispatches: true` means that any dispatch may have changed. */
export type Changed = Readonly<Record<string, boolean | readonly (string | number)[] | null | undefined>>;

/** `workers` -> `worker`, `dispatches` -> `dispatch`. */
const singular = (word: string): string => word.replace(/(?<=ch)es$|s$/, "");

/** Whether an event invalidates a query. */
export function isInvalidated(queryKey: readonly unknown[], changed: Changed): boolean {
  const [area, word, id] = queryKey;
  if (area !== "console") return false;
  if (changed.everything) return true;
  return Object.entries(changed).some(([name, what]) => {
    if (!what || (Array.isArray(what) && what.length === 0)) return false;
    if (word === name) return true;
    if (word !== singular(name)) return false;
    return what === true || (what as readonly unknown[]).some((each) => matchesId(String(each), String(id)));
  });
}

/** `*` matches every id. */
const matchesId = (named: string, id: string): boolean => named === id || named === "*";

const EVERYTHING: Changed = { everything: true };

/** Merges two events. */
export function mergeChanges(one: Changed, other: Changed): Changed {
  const merged: Record<string, boolean | readonly (string | number)[]> = {};
  for (const name of new Set([...Object.keys(one), ...Object.keys(other)])) {
    const [first, second] = [one[name] ?? false, other[name] ?? false];
    if (Array.isArray(first) && Array.isArray(second)) merged[name] = [...new Set([...first, ...second])];
    else if (first === true || second === true) merged[name] = true;
    else merged[name] = first || second;
  }
  return merged;
}

export type StreamState = "connecting" | "live" | "polling";

export class ConsoleStream {
  private source: Source | undefined;
  private pending: Changed = {};
  private settling: ReturnType<typeof setTimeout> | undefined;
  private polling: ReturnType<typeof setInterval> | undefined;
  private reconnecting: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly client: QueryClient,
    private readonly setState: (state: StreamState) => void,
    private readonly open: (path: string) => Source = openShared,
  ) {}

  start(): void {
    const source = this.open(PATH);
    this.source = source;
    source.onopen = () => {
      this.stopPolling();
      this.setState("live");
    };
    source.onerror = () => {
      this.setState("polling");
      this.poll();
      if (source.readyState !== source.CLOSED) return;
      // the browser does not retry
      source.close();
      clearTimeout(this.reconnecting);
      this.reconnecting = setTimeout(() => this.start(), RECONNECT_MS);
    };
    source.addEventListener("changed", (event) => {
      const { data } = event as MessageEvent<string>;
      this.pending = mergeChanges(this.pending, parse(data) as Changed);
      this.schedule();
    });
    // every stream starts with a reset, because earlier changes were not reported
    source.addEventListener("reset", () => {
      this.pending = EVERYTHING;
      this.schedule();
    });
  }

  stop(): void {
    this.source?.close();
    this.stopPolling();
    clearTimeout(this.settling);
    clearTimeout(this.reconnecting);
  }

  private schedule(): void {
    this.settling ??= setTimeout(() => void this.settle(), SETTLE_MS);
  }

  /** Waits for running refetches, so that frequent events do not restart them. */
  private async settle(): Promise<void> {
    const { pending } = this;
    this.pending = {};
    await this.client.invalidateQueries({ predicate: ({ queryKey }) => isInvalidated(queryKey, pending) });
    this.settling = undefined;
    if (Object.keys(this.pending).length) this.schedule();
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
