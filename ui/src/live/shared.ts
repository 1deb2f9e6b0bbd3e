// One stream of events for all tabs of a browser, which allows only six connections to a host: the tab that holds a lock
// has the stream and tells the others what it hears. Where a browser has no locks, each tab has a stream of its own.

/** What a connection needs of an `EventSource`. */
export interface Source {
  readonly CLOSED: number;
  readonly readyState: number;
  onopen: (() => void) | null;
  onerror: (() => void) | null;
  addEventListener: (kind: string, listener: (event: Event) => void) => void;
  close: () => void;
}

export const ASK_MS = 4000;
/** So many questions without an answer, and the tab that has the stream sleeps: another takes it over. */
export const MOST_UNANSWERED = 3;
/** Each stream has a lock and a channel of its own. */
const lockOf = (path: string): string => `comfyrelay${path}`;
const CLOSED = 2;

type Message =
  | { kind: "ask" }
  | { kind: "state"; state: number; isNew: boolean }
  | { kind: "event"; name: string; data: string };

export interface Between {
  open: (path: string) => Source;
  locks: Pick<LockManager, "request">;
  channel: () => Pick<BroadcastChannel, "postMessage" | "close" | "onmessage">;
}

export function openShared(path: string): Source {
  const open = (to: string) => new EventSource(to) as unknown as Source;
  // neither is there where a page came over plain HTTP from another machine
  if (!("locks" in navigator) || !("BroadcastChannel" in globalThis)) return open(path);
  return new SharedSource(path, { open, locks: navigator.locks, channel: () => new BroadcastChannel(lockOf(path)) });
}

export class SharedSource implements Source {
  readonly CLOSED = CLOSED;
  readyState = 0;
  onopen: (() => void) | null = null;
  onerror: (() => void) | null = null;
  private readonly channel: ReturnType<Between["channel"]>;
  private readonly listeners = new Map<string, ((event: Event) => void)[]>();
  private waiting = new AbortController();
  private isClosed = false;
  private wasOpen = false;
  private own: Source | undefined;
  private release: (() => void) | undefined;
  private unanswered = 0;
  private readonly asking: ReturnType<typeof setInterval>;

  constructor(
    private readonly path: string,
    private readonly between: Between,
  ) {
    this.channel = between.channel();
    this.channel.onmessage = ({ data }: MessageEvent<Message>) => this.onMessage(data);
    this.asking = setInterval(this.ask, ASK_MS);
    this.wait(false);
    this.broadcast({ kind: "ask" });
  }

  addEventListener(kind: string, listener: (event: Event) => void): void {
    this.listeners.set(kind, [...(this.listeners.get(kind) ?? []), listener]);
  }

  close(): void {
    if (this.isClosed) return;
    this.isClosed = true;
    this.readyState = CLOSED;
    clearInterval(this.asking);
    this.waiting.abort();
    this.lose();
    this.channel.close();
  }

  /** Whoever gets the lock has the stream until it is closed, or until another takes the lock away. */
  private wait(isTaken: boolean): void {
    this.waiting.abort();
    const waiting = new AbortController();
    this.waiting = waiting;
    const held = () =>
      new Promise<void>((release) => {
        if (this.isClosed) return release();
        this.release = release;
        this.lead();
      });
    this.between.locks
      .request(lockOf(this.path), isTaken ? { steal: true } : { signal: waiting.signal }, held)
      .catch(() => {
        if (waiting.signal.aborted) return;
        this.lose();
        this.wait(false);
      });
  }

  private lead(): void {
    const source = this.between.open(this.path);
    this.own = source;
    let isNew = true;
    source.onopen = () => {
      this.broadcast({ kind: "state", state: 1, isNew });
      this.become(1, isNew);
      isNew = false;
    };
    source.onerror = () => {
      this.broadcast({ kind: "state", state: source.readyState, isNew: false });
      this.become(source.readyState, false);
    };
    for (const name of this.listeners.keys()) {
      source.addEventListener(name, (event) => {
        const { data } = event as MessageEvent<string>;
        this.broadcast({ kind: "event", name, data });
        this.emit(name, data);
      });
    }
  }

  private lose(): void {
    this.own?.close();
    this.own = undefined;
    this.release?.();
    this.release = undefined;
  }

  private onMessage(message: Message): void {
    if (message.kind === "ask") {
      if (this.own) this.broadcast({ kind: "state", state: this.own.readyState, isNew: false });
      return;
    }
    this.unanswered = 0;
    // one that has lost the stream may not know it yet
    if (this.own) return;
    if (message.kind === "event") this.emit(message.name, message.data);
    else this.become(message.state, message.isNew);
  }

  private become(state: number, isNew: boolean): void {
    const before = this.readyState;
    this.readyState = state;
    // a new stream does not replay what was missed between the two
    if (isNew && this.wasOpen) this.emit("reset", "");
    this.wasOpen ||= state === 1;
    if (state === 1 && before !== 1) this.onopen?.();
    if (state !== 1 && (before === 1 || state === CLOSED)) this.onerror?.();
  }

  private readonly ask = (): void => {
    // timers of hidden pages are late, and nobody sees what they show
    if (this.own || document.hidden) return;
    const isAsleep = this.unanswered >= MOST_UNANSWERED;
    this.unanswered = isAsleep ? 0 : this.unanswered + 1;
    if (isAsleep) this.wait(true);
    else this.broadcast({ kind: "ask" });
  };

  private emit(kind: string, data: string): void {
    for (const each of this.listeners.get(kind) ?? []) each(new MessageEvent(kind, { data }));
  }

  private broadcast(message: Message): void {
    this.channel.postMessage(message);
  }
}
