import { QueryClient, QueryObserver } from "@tanstack/react-query";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { Source } from "@/live/shared-stream";
import {
  ConsoleStream,
  consoleKeys,
  isInvalidated,
  mergeChanges,
  POLL_MS,
  RECONNECT_MS,
  SETTLE_MS,
  type StreamState,
} from "./live";

class Stream extends EventTarget implements Source {
  static all: Stream[] = [];
  readonly CLOSED = 2;
  readyState = 0;
  onopen: (() => void) | null = null;
  onerror: (() => void) | null = null;
  isClosed = false;

  constructor() {
    super();
    Stream.all.push(this);
  }

  emit(data: unknown, kind = "changed") {
    this.dispatchEvent(new MessageEvent(kind, { data: JSON.stringify(data) }));
  }

  close() {
    this.isClosed = true;
  }
}

describe("isInvalidated", () => {
  it("matches the list and the named items", () => {
    const changed = { workers: ["gpu-1"], dispatches: false };
    expect(isInvalidated([...consoleKeys.workers, { stage: "" }], changed)).toBe(true);
    expect(isInvalidated(consoleKeys.worker("gpu-1"), changed)).toBe(true);
    expect(isInvalidated([...consoleKeys.worker("gpu-1"), "audit"], changed)).toBe(true);
    expect(isInvalidated(consoleKeys.worker("gpu-2"), changed)).toBe(false);
    expect(isInvalidated(consoleKeys.dispatches, changed)).toBe(false);
    expect(isInvalidated(["workers"], changed)).toBe(false);
  });

  it("matches every item if the event has no ids", () => {
    expect(isInvalidated(consoleKeys.dispatch("7"), { dispatches: true })).toBe(true);
    expect(isInvalidated(consoleKeys.samples, { samples: true })).toBe(true);
  });

  it("matches nothing for an empty id list", () => {
    expect(isInvalidated(consoleKeys.workers, { workers: [] })).toBe(false);
  });

  it("matches a fleet by stage and slug", () => {
    const key = consoleKeys.fleet("production", "home");
    expect(isInvalidated(key, { fleets: ["production/home"] })).toBe(true);
    expect(isInvalidated(key, { fleets: ["staging/home"] })).toBe(false);
  });

  it("matches every id for *", () => {
    expect(isInvalidated(consoleKeys.worker("gpu-1"), { workers: ["*"] })).toBe(true);
  });
});

it("merges two events", () => {
  const one = { workers: ["a", "b"], dispatches: false, samples: true };
  expect(mergeChanges(one, { workers: ["b", "c"], dispatches: true })).toEqual({
    workers: ["a", "b", "c"],
    dispatches: true,
    samples: true,
  });
  expect(mergeChanges({ fleets: true }, { fleets: ["home"] })).toEqual({ fleets: true });
});

describe("ConsoleStream", () => {
  let client: QueryClient;
  let stream: ConsoleStream;
  let state: StreamState | undefined;
  const newest = () => Stream.all.at(-1) as Stream;
  const isStale = () => client.getQueryState(consoleKeys.workers)?.isInvalidated;
  const fetched = () => client.setQueryData(consoleKeys.workers, []);

  beforeEach(() => {
    vi.useFakeTimers();
    Stream.all = [];
    client = new QueryClient();
    const become = (next: StreamState) => {
      state = next;
    };
    stream = new ConsoleStream(client, become, () => new Stream());
    stream.start();
    newest().onopen?.();
    fetched();
  });

  afterEach(() => {
    stream.stop();
    vi.useRealTimers();
  });

  it("invalidates named queries after a delay", () => {
    newest().emit({ workers: ["gpu-1"] });
    expect(isStale()).toBe(false);
    vi.advanceTimersByTime(SETTLE_MS);
    expect(isStale()).toBe(true);
  });

  it("refetches once more after a running fetch instead of restarting it", async () => {
    let asked = 0;
    let answer: (found: unknown[]) => void = () => {};
    const queryFn = () => {
      asked += 1;
      return new Promise<unknown[]>((done) => {
        answer = done;
      });
    };
    const stop = new QueryObserver(client, { queryKey: consoleKeys.workers, queryFn, staleTime: 1e9 }).subscribe(
      () => {},
    );
    for (let event = 0; event < 3; event += 1) {
      newest().emit({ workers: ["gpu-1"] });
      await vi.advanceTimersByTimeAsync(SETTLE_MS);
    }
    expect(asked).toBe(1);
    answer([]);
    await vi.advanceTimersByTimeAsync(SETTLE_MS);
    expect(asked).toBe(2);
    stop();
  });

  it("keeps queries that the event does not name", () => {
    newest().emit({ workers: [], dispatches: true });
    vi.advanceTimersByTime(SETTLE_MS);
    expect(isStale()).toBe(false);
  });

  it("reopens a closed stream and polls until then", () => {
    newest().readyState = 2;
    newest().onerror?.();
    expect(state).toBe("polling");
    vi.advanceTimersByTime(POLL_MS);
    expect(isStale()).toBe(true);
    vi.advanceTimersByTime(RECONNECT_MS);
    expect(Stream.all).toHaveLength(2);
    newest().onopen?.();
    expect(state).toBe("live");
    fetched();
    vi.advanceTimersByTime(10 * POLL_MS);
    expect(isStale()).toBe(false);
  });

  it("invalidates everything on reset", () => {
    newest().emit({}, "reset");
    vi.advanceTimersByTime(SETTLE_MS);
    expect(isStale()).toBe(true);
  });
});
