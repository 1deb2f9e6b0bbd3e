import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { type Browser as BrowserApi, MAX_UNANSWERED, PING_MS, SharedSource, type Source } from "./shared-stream";

/** A fake `EventSource`. */
class Stream implements Source {
  static all: Stream[] = [];
  readonly CLOSED = 2;
  readyState = 0;
  onopen: (() => void) | null = null;
  onerror: (() => void) | null = null;
  private readonly listeners = new Map<string, (event: Event) => void>();

  constructor() {
    Stream.all.push(this);
  }

  addEventListener(kind: string, listener: (event: Event) => void) {
    this.listeners.set(kind, listener);
  }

  open() {
    this.readyState = 1;
    this.onopen?.();
  }

  fail() {
    this.readyState = 0;
    this.onerror?.();
  }

  emit(kind: string, data: string) {
    this.listeners.get(kind)?.(new MessageEvent(kind, { data }));
  }

  close() {
    this.readyState = 2;
  }
}

/** The locks and broadcast channels of one browser. */
class Browser {
  private readonly queue: { held: () => Promise<void>; fail: (why: Error) => void }[] = [];
  private holder: ((why: Error) => void) | null = null;
  private readonly channels = new Set<{ onmessage: ((event: MessageEvent) => void) | null; isAsleep: boolean }>();
  readonly locks = {
    request: (_name: string, options: LockOptions, held: () => Promise<void>) =>
      new Promise<void>((_done, fail) => {
        options.signal?.addEventListener("abort", () => fail(new Error("aborted")));
        const entry = { held: () => (options.signal?.aborted ? Promise.resolve() : held()), fail };
        if (options.steal) {
          this.holder?.(new Error("stolen"));
          this.hold(entry);
        } else {
          this.queue.push(entry);
          this.next();
        }
      }),
  } as unknown as BrowserApi["locks"];

  channel() {
    const own: { onmessage: ((event: MessageEvent) => void) | null; isAsleep: boolean } = {
      onmessage: null,
      isAsleep: false,
    };
    this.channels.add(own);
    return {
      own,
      get onmessage() {
        return own.onmessage;
      },
      set onmessage(heard) {
        own.onmessage = heard as typeof own.onmessage;
      },
      postMessage: (data: unknown) =>
        void Promise.resolve().then(() => {
          for (const each of this.channels) {
            if (each !== own && !each.isAsleep) each.onmessage?.(new MessageEvent("message", { data }));
          }
        }),
      close: () => void this.channels.delete(own),
    };
  }

  tab() {
    const channel = this.channel();
    const source = new SharedSource("/", { open: () => new Stream(), locks: this.locks, channel: () => channel });
    const heard: string[] = [];
    source.onopen = () => heard.push("open");
    source.onerror = () => heard.push("error");
    for (const kind of ["changed", "reset"]) {
      source.addEventListener(kind, (event) => heard.push(`${kind} ${(event as MessageEvent<string>).data}`.trim()));
    }
    return { source, heard, channel: channel.own };
  }

  private hold(entry: (typeof this.queue)[number]) {
    const mine = entry.fail;
    this.holder = mine;
    // asynchronous, as in a browser
    void Promise.resolve()
      .then(entry.held)
      .then(() => {
        if (this.holder !== mine) return;
        this.holder = null;
        this.next();
      });
  }

  private next() {
    const entry = this.holder ? undefined : this.queue.shift();
    if (entry) this.hold(entry);
  }
}

const settle = () => vi.advanceTimersByTimeAsync(0);

beforeEach(() => {
  vi.useFakeTimers();
  Stream.all = [];
});
afterEach(() => vi.useRealTimers());

describe("tabs of one browser", () => {
  it("share one stream", async () => {
    const browser = new Browser();
    const tabs = [browser.tab(), browser.tab(), browser.tab()];
    await settle();
    Stream.all[0]?.open();
    Stream.all[0]?.emit("changed", "1");
    await settle();
    const late = browser.tab();
    await settle();
    Stream.all[0]?.emit("changed", "2");
    await settle();
    expect(Stream.all).toHaveLength(1);
    for (const each of tabs) expect(each.heard).toEqual(["open", "changed 1", "changed 2"]);
    expect(late.heard).toEqual(["open", "changed 2"]);
  });

  it("all notice when it is lost and restored", async () => {
    const browser = new Browser();
    const tabs = [browser.tab(), browser.tab()];
    await settle();
    Stream.all[0]?.open();
    Stream.all[0]?.fail();
    Stream.all[0]?.open();
    await settle();
    for (const each of tabs) expect(each.heard).toEqual(["open", "error", "open"]);
  });

  it("continue with a new stream when the leader closes, and refetch missed changes", async () => {
    const browser = new Browser();
    const [first, second, third] = [browser.tab(), browser.tab(), browser.tab()];
    await settle();
    Stream.all[0]?.open();
    await settle();
    first.source.close();
    await settle();
    expect(Stream.all.map((each) => each.readyState)).toEqual([2, 0]);
    Stream.all[1]?.open();
    Stream.all[1]?.emit("changed", "1");
    await settle();
    for (const each of [second, third]) expect(each.heard).toEqual(["open", "reset", "changed 1"]);
  });

  it("take over from a sleeping leader, which follows after it wakes", async () => {
    const browser = new Browser();
    const [first, second] = [browser.tab(), browser.tab()];
    await settle();
    Stream.all[0]?.open();
    await settle();
    first.channel.isAsleep = true;
    await vi.advanceTimersByTimeAsync(PING_MS * (MAX_UNANSWERED + 1));
    expect(Stream.all).toHaveLength(2);
    Stream.all[1]?.open();
    await settle();
    first.channel.isAsleep = false;
    await settle();
    expect(Stream.all[0]?.readyState).toBe(2);
    Stream.all[1]?.emit("changed", "1");
    await settle();
    expect(first.heard.at(-1)).toBe("changed 1");
    expect(second.heard).toEqual(["open", "reset", "changed 1"]);
  });
});
