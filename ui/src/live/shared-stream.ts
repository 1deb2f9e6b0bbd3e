// One event stream for all tabs of a browser, because browsers allow only six connections per host. The tab that holds a
// lock opens the stream and broadcasts its events. Without the Web Locks API, each tab opens its own stream.

/** The part of `EventSource` that a connection uses. */
export interface Source {
  readonly CLOSED: number;
  readonly readyState: number;
  onopen: (() => void) | null;
  onerror: (() => void) | null;
  addEventListener: (kind: string, listener: (event: Event) => void) => void;
  close: () => void;
}

export const PING_MS = 4000;
/** After this many unanswered pings, the leader is asleep and another tab takes over. */
export const MAX_UNANSWERED = 3;
/** Each stream has its own lock and channel. */
const lockOf = (path: string): string => `comfyrelay${path}`;
const CLOSED = 2;

type Message =
  | { kind: "ping" }
  | { kind: "state"; state: number; isNew: boolean }
  | { kind: "event"; name: string; data: string };

export interface Browser {
  open: (path: string) => Source;
  locks: Pick<LockManager, "request">;
  channel: () => Pick<BroadcastChannel, "postMessage" | "close" | "onmessage">;
}

export function openShared(path: string): Source {
  const open = (to: string) => new EventSource(to) as unknown as Source;
  // pages opened over plain HTTP from another machine have neither
  if (!("locks" in navigator) || !("BroadcastChannel" in globalThis)) return open(path);
  return new SharedSource(path, { open, locks: navigator.locks, channel: () => new BroadcastChannel(lockOf(path)) });
}

export class SharedSource implements Source {
  readonly CLOSED = CLOSED;
  readyState = 0;
  onopen: (() => void) | null = null;
  onerror: (() => void) | null = null;
  private readonly channel: ReturnType<Browser["channel"]>;
  private readonly listeners = new Map<string, ((event: Event) => void)[]>();
  private waiting = new AbortController();
  private isClosed = false;
  private wasOpen = false;
  private own: Source | undefined;
  private release: (() => void) | undefined;
  private unanswered = 0;
  private readonly pinging: ReturnType<typeof setInterval>;

  constructor(
    private readonly path: string,
    private readonly browser: Browser,
  ) {
    this.channel = browser.channel();
    this.channel.onmessage = ({ data }: MessageEvent<Message>) => this.onMessage(data);
    this.pinging = setInterval(this.ping, PING_MS);
    this.requestLock(false);
    this.broadcast({ kind: "ping" });
  }

  addEventListener(kind: string, listener: (event: Event) => void): void {
    this.listeners.set(kind, [...(this.listeners.get(kind) ?? []), listener]);
  }

  close(): void {
    if (this.isClosed) return;
    this.isClosed = true;
    this.readyState = CLOSED;
    clearInterval(this.pinging);
    this.waiting.abort();
    this.stopLeading();
    this.channel.close();
  }

  /** Waits for the lock, or steals it. Its holder leads until it closes or another tab steals the lock. */
  private requestLock(isStolen: boolean): void {
    this.waiting.abort();
    const waiting = new AbortController();
    this.waiting = waiting;
    const held = () =>
      new Promise<void>((release) => {
        if (this.isClosed) return release();
        this.release = release;
        this.lead();
      });
    this.browser.locks
      .request(lockOf(this.path), isStolen ? { steal: true } : { signal: waiting.signal }, held)
      .catch(() => {
        if (waiting.signal.aborted) return;
        this.stopLeading();
        this.requestLock(false);
      });
  }

  private lead(): void {
    const source = this.browser.open(this.path);
    this.own = source;
    let isNew = true;
    source.onopen = () => {
      this.broadcast({ kind: "state", state: 1, isNew });
      this.setState(1, isNew);
      isNew = false;
    };
    source.onerror = () => {
      this.broadcast({ kind: "state", state: source.readyState, isNew: false });
      this.setState(source.readyState, false);
    };
    for (const name of this.listeners.keys()) {
      source.addEventListener(name, (event) => {
        const { data } = event as MessageEvent<string>;
        this.broadcast({ kind: "event", name, data });
        this.emit(name, data);
      });
    }
  }

  private stopLeading(): void {
    this.own?.close();
    this.own = undefined;
    this.release?.();
    this.release = undefined;
  }

  private onMessage(message: Message): void {
    if (message.kind === "ping") {
      if (this.own) this.broadcast({ kind: "state", state: this.own.readyState, isNew: false });
      return;
    }
    this.unanswered = 0;
    // ignore a former leader that does not know yet that it was replaced
    if (this.own) return;
    if (message.kind === "event") this.emit(message.name, message.data);
    else this.setState(message.state, message.isNew);
  }

  private setState(state: number, isNew: boolean): void {
    const before = this.readyState;
    this.readyState = state;
    // a new stream does not replay the events since the old one
    if (isNew && this.wasOpen) this.emit("reset", "");
    this.wasOpen ||= state === 1;
    if (state === 1 && before !== 1) this.onopen?.();
    if (state !== 1 && (before === 1 || state === CLOSED)) this.onerror?.();
  }

  private readonly ping = (): void => {
    // hidden tabs have throttled timers and show nothing
    if (this.own || document.hidden) return;
    const isAsleep = this.unanswered >= MAX_UNANSWERED;
    this.unanswered = isAsleep ? 0 : this.unanswered + 1;
    if (isAsleep) this.requestLock(true);
    else this.broadcast({ kind: "ping" });
  };

  private emit(kind: string, data: string): void {
    for (const each of this.listeners.get(kind) ?? []) each(new MessageEvent(kind, { data }));
  }

  private broadcast(message: Message): void {
    this.channel.postMessage(message);
  }
}
