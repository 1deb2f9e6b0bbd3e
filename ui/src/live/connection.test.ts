import { QueryClient } from "@tanstack/react-query";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { keys } from "@/api/queries";
import { onTabChange, subscribeToTabs } from "@/api/tabs";
import type { Job } from "@/api/types";
import { Connection, POLL_MS, RECONNECT_MS, SLEEP_HIDDEN_MS, SLEEP_MS } from "./connection";

class Stream extends EventTarget {
  static all: Stream[] = [];
  readonly CLOSED = 2;
  readyState = 0;
  onopen: (() => void) | null = null;
  onerror: (() => void) | null = null;

  constructor() {
    super();
    Stream.all.push(this);
  }

  open() {
    this.readyState = 1;
    this.onopen?.();
  }

  fail(isForGood: boolean) {
    this.readyState = isForGood ? 2 : 0;
    this.onerror?.();
  }

  emit(kind: string, data: unknown) {
    this.dispatchEvent(new MessageEvent(kind, { data: JSON.stringify(data) }));
  }

  close() {
    this.readyState = 2;
  }
}

const job = (id: string, status: string, progress: object | null = null) =>
  ({ id, status, progress, outputs: [] }) as unknown as Job;
const page = (...items: Job[]) => ({ pages: [{ items, next_cursor: null }], pageParams: [""] });

let client: QueryClient;
let connection: Connection;
let isReached: boolean;
const newest = () => Stream.all.at(-1) as Stream;
const isStale = () => client.getQueryState([...keys.jobs, {}])?.isInvalidated;
const shown = () => client.getQueryData<ReturnType<typeof page>>([...keys.jobs, {}])?.pages[0]?.items;

beforeEach(() => {
  vi.useFakeTimers();
  Stream.all = [];
  isReached = true;
  client = new QueryClient();
  connection = new Connection(client, {
    open: () => new Stream(),
    isReachable: async () => isReached,
  });
  connection.start();
  newest().open();
  // let the refetch after opening pass
  vi.advanceTimersByTime(1000);
  client.setQueryData([...keys.jobs, {}], page(job("a", "queued"), job("b", "queued")));
});

afterEach(() => {
  connection.stop();
  vi.useRealTimers();
});

describe("live events", () => {
  it("change a row in place and leave the others untouched", () => {
    const before = shown()?.[1];
    newest().emit("changed", { jobs: [{ ...job("a", "queued"), label: "new" }] });
    expect(shown()?.[0]?.label).toBe("new");
    expect(shown()?.[1]).toBe(before);
    vi.advanceTimersByTime(1000);
    expect(isStale()).toBe(false);
  });

  it("refetch a list whose order may have changed", () => {
    newest().emit("changed", { jobs: [job("a", "completed")] });
    expect(shown()?.[0]?.status).toBe("completed");
    vi.advanceTimersByTime(1000);
    expect(isStale()).toBe(true);
  });

  it("refetch a list with a new job, after events have settled", () => {
    newest().emit("changed", { jobs: [job("c", "queued")] });
    expect(isStale()).toBe(false);
    vi.advanceTimersByTime(1000);
    expect(isStale()).toBe(true);
  });

  it.each([
    ["job", keys.job("a"), { jobs: [job("a", "completed")] }],
    ["batch", keys.batch("a"), { batches: [{ id: "a", status: "completed" }] }],
  ])("are not overwritten by an older response about a %s", async (_kind, queryKey, said) => {
    let answer = (_data: unknown) => {};
    const asked = client
      .fetchQuery({ queryKey, queryFn: () => new Promise((resolve) => (answer = resolve)) })
      .catch(() => undefined);
    newest().emit("changed", said);
    answer(job("a", "queued"));
    await asked;
    expect(client.getQueryData<Job>(queryKey)?.status).toBe("completed");
  });

  it("refetch a list that was pending when they arrived", async () => {
    let answer = (_data: unknown) => {};
    const asked = client.fetchQuery({
      queryKey: [...keys.jobs, {}],
      queryFn: () => new Promise((resolve) => (answer = resolve)),
    });
    newest().emit("changed", { jobs: [{ ...job("a", "queued"), label: "new" }] });
    answer(page(job("a", "queued"), job("b", "queued")));
    await asked;
    vi.advanceTimersByTime(1000);
    expect(isStale()).toBe(true);
  });

  it("remove deleted rows", () => {
    newest().emit("changed", { removed: ["a"] });
    expect(shown()?.map((each) => each.id)).toEqual(["b"]);
  });

  it("update the progress in the list and on the page of a job", () => {
    client.setQueryData(keys.job("b"), job("b", "processing"));
    newest().emit("progress", { jobs: [{ id: "b", progress: { value: 0.5 } }] });
    expect(shown()?.[1]?.progress).toEqual({ value: 0.5 });
    expect(client.getQueryData<Job>(keys.job("b"))?.progress).toEqual({ value: 0.5 });
  });

  it("update the counts", () => {
    newest().emit("queue", { counts: { queued: 2 }, paused_at: "2026-01-01T12:00:00Z" });
    expect(client.getQueryData(keys.counts)).toEqual({
      counts: { queued: 2 },
      waiting: 2,
      running: 0,
      pausedAt: "2026-01-01T12:00:00Z",
    });
  });

  it("refetch the history of the changed job only", () => {
    for (const id of ["a", "b"]) client.setQueryData(keys.history(id), []);
    newest().emit("changed", { jobs: [job("a", "queued")] });
    expect(["a", "b"].map((id) => client.getQueryState(keys.history(id))?.isInvalidated)).toEqual([true, false]);
  });

  it("refetch all queries when events were missed", () => {
    newest().emit("reset", null);
    expect(isStale()).toBe(true);
  });

  it("refetch lists that are filtered by marks when another browser marked outputs", () => {
    const all = [...keys.gallery, "newest", {}];
    const starred = [...keys.gallery, "newest", { mark: "starred" }];
    const known = [all, starred, ["gallery-index", {}], ["gallery-index", { collection: "c" }], ["collections"]];
    for (const each of known) client.setQueryData(each, {});
    const heard = vi.fn();
    const [stopFollowing, stopListening] = [subscribeToTabs(client), onTabChange(heard)];
    newest().emit("gallery", { outputs: ["o"], is_all: false });
    expect(known.map((each) => client.getQueryState(each)?.isInvalidated)).toEqual([false, true, false, true, true]);
    expect(heard.mock.calls[0]?.[0].outputs).toEqual(["o"]);
    newest().emit("gallery", { outputs: [], is_all: true });
    expect(heard.mock.calls[1]?.[0].outputs).toBe(null);
    stopFollowing();
    stopListening();
  });

  it("reach all listeners", () => {
    const heard = vi.fn();
    connection.on("changed", heard);
    newest().emit("changed", { removed: ["a"] });
    expect(heard).toHaveBeenCalledWith({ removed: ["a"] });
  });
});

describe("the connection", () => {
  it("refetches older queries shortly after it opens", () => {
    connection.stop();
    connection = new Connection(client, {
      open: () => new Stream(),
      isReachable: async () => isReached,
    });
    connection.start();
    newest().open();
    expect(isStale()).toBe(false);
    vi.advanceTimersByTime(1000);
    expect(isStale()).toBe(true);
  });

  it("leaves short interruptions to the browser", () => {
    newest().fail(false);
    expect(connection.state).toBe("reconnecting");
    newest().open();
    expect(connection.state).toBe("live");
    expect(Stream.all).toHaveLength(1);
  });

  it("polls while the stream is refused, and reconnects later", async () => {
    newest().fail(true);
    await vi.advanceTimersByTimeAsync(POLL_MS);
    expect(connection.state).toBe("polling");
    expect(isStale()).toBe(true);
    await vi.advanceTimersByTimeAsync(RECONNECT_MS);
    expect(Stream.all).toHaveLength(2);
    newest().open();
    expect(connection.state).toBe("live");
  });

  it("is reconnecting while the server is unreachable", async () => {
    isReached = false;
    newest().fail(true);
    await vi.advanceTimersByTimeAsync(POLL_MS);
    expect(connection.state).toBe("reconnecting");
  });

  it("reconnects and refetches after the machine slept", () => {
    vi.setSystemTime(Date.now() + SLEEP_MS * 2);
    document.dispatchEvent(new Event("visibilitychange"));
    expect(Stream.all).toHaveLength(2);
    expect(Stream.all[0]?.readyState).toBe(2);
    newest().open();
    expect(isStale()).toBe(true);
  });

  it("is kept in a hidden tab, whose timers fire once a minute", () => {
    const isHidden = vi.spyOn(document, "hidden", "get").mockReturnValue(true);
    document.dispatchEvent(new Event("visibilitychange"));
    for (let minute = 0; minute < 3; minute += 1) {
      vi.setSystemTime(Date.now() + 60_000);
      document.dispatchEvent(new Event("visibilitychange"));
    }
    expect(Stream.all).toHaveLength(1);
    vi.setSystemTime(Date.now() + SLEEP_HIDDEN_MS * 2);
    isHidden.mockReturnValue(false);
    document.dispatchEvent(new Event("visibilitychange"));
    expect(Stream.all).toHaveLength(2);
    isHidden.mockRestore();
  });
});
