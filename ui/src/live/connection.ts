// The event stream of this tab. The browser reconnects a broken stream, and the server replays the missed events. After
// a failed reconnect, or when the machine slept, a new stream is opened and all queries are refetched. While there is no
// stream, the active queries are polled.

import type { QueryClient } from "@tanstack/react-query";
import { parse } from "@/api/json";
import type { Counts } from "@/api/queries";
import { CacheUpdater, type Changed, type Gallery, type Progress } from "./cache-updater";
import type { Source } from "./shared-stream";

export const PATH = "/api/events";
export const POLL_MS = 2000;
export const RECONNECT_MS = 30_000;
/** A longer gap between two ticks means that the machine slept. */
export const SLEEP_MS = 20_000;
/** The same for a hidden tab, whose timers fire once a minute. */
export const SLEEP_HIDDEN_MS = 150_000;
const TICK_MS = 5000;

export type LiveState = "connecting" | "live" | "reconnecting" | "polling" | "offline";

interface Events {
  changed: Changed;
  progress: Progress;
  queue: Counts;
  gallery: Gallery;
  wallet: null;
  reset: null;
}
type Listener<K extends keyof Events> = (data: Events[K]) => void;
type Listeners = { readonly [K in keyof Events]: Set<Listener<K>> };

export interface Server {
  open: (path: string) => Source;
  /** Whether the server answers and accepts the session. */
  isReachable: () => Promise<boolean>;
}

export class Connection {
  state: LiveState = "connecting";
  private readonly cache: CacheUpdater;
  private readonly subscribers = new Set<() => void>();
  private readonly listeners: Listeners = {
    changed: new Set(),
    progress: new Set(),
    queue: new Set(),
    gallery: new Set(),
    wallet: new Set(),
    reset: new Set(),
  };
  private source: Source | undefined;
  private wasOpen = false;
  private polling: ReturnType<typeof setInterval> | undefined;
  private reconnecting: ReturnType<typeof setTimeout> | undefined;
  private ticking: ReturnType<typeof setInterval> | undefined;
  private lastTick = 0;
  private wasHidden = false;

  constructor(
    client: QueryClient,
    private readonly server: Server,
  ) {
    this.cache = new CacheUpdater(client);
  }

  start(): void {
    this.lastTick = Date.now();
    this.wasHidden = document.hidden;
    this.ticking = setInterval(this.tick, TICK_MS);
    addEventListener("online", this.renew);
    addEventListener("offline", this.noticeOffline);
    document.addEventListener("visibilitychange", this.tick);
    this.connect();
  }

  stop(): void {
    clearInterval(this.ticking);
    removeEventListener("online", this.renew);
    removeEventListener("offline", this.noticeOffline);
    document.removeEventListener("visibilitychange", this.tick);
    this.disconnect();
    this.cache.stop();
  }

  on<K extends keyof Events>(kind: K, listener: Listener<K>): () => void {
    const listeners: Set<Listener<K>> = this.listeners[kind];
    listeners.add(listener);
    return () => void listeners.delete(listener);
  }

  readonly subscribe = (subscriber: () => void): (() => void) => {
    this.subscribers.add(subscriber);
    return () => void this.subscribers.delete(subscriber);
  };

  private connect(): void {
    this.disconnect();
    const source = this.server.open(PATH);
    this.source = source;
    let isFirst = true;
    source.onopen = () => {
      this.stopPolling();
      // data fetched before a new stream started may be stale; a page that was just opened refetches a little later, so
      // that it does not load everything twice at once
      if (isFirst && this.wasOpen) this.cache.reset();
      else if (isFirst) this.cache.resetSoon();
      else this.cache.refetchFailed();
      isFirst = false;
      this.wasOpen = true;
      this.setState("live");
    };
    source.onerror = () => this.onError(source);
    this.listenTo(source, "changed", (data) => this.cache.changed(data));
    this.listenTo(source, "progress", (data) => this.cache.progress(data));
    this.listenTo(source, "queue", (data) => this.cache.queue(data));
    this.listenTo(source, "gallery", (data) => this.cache.gallery(data));
    this.listenTo(source, "wallet", () => this.cache.wallet());
    this.listenTo(source, "reset", () => this.cache.reset());
  }

  private listenTo<K extends keyof Events>(source: Source, kind: K, apply: (data: Events[K]) => void): void {
    source.addEventListener(kind, (event) => {
      const { data } = event as MessageEvent<string>;
      const found = (data ? parse(data) : null) as Events[K];
      apply(found);
      for (const each of this.listeners[kind]) each(found);
    });
  }

  private onError(source: Source): void {
    if (source !== this.source) return;
    if (source.readyState !== source.CLOSED) {
      // the browser reconnects
      this.setState(navigator.onLine === false ? "offline" : this.wasOpen ? "reconnecting" : "connecting");
      this.poll();
      return;
    }
    // the browser has given up: the server refused the stream or is unreachable
    this.disconnect();
    this.setState("reconnecting");
    this.poll();
    this.reconnecting = setTimeout(() => this.connect(), RECONNECT_MS);
  }

  private poll(): void {
    if (this.polling) return;
    const pollOnce = async () => {
      if (document.hidden) return;
      if (!(await this.server.isReachable())) {
        this.setState(navigator.onLine === false ? "offline" : "reconnecting");
        return;
      }
      if (!this.polling) return;
      this.setState("polling");
      this.cache.reset();
    };
    this.polling = setInterval(() => void pollOnce(), POLL_MS);
    void pollOnce();
  }

  private stopPolling(): void {
    clearInterval(this.polling);
    this.polling = undefined;
  }

  private disconnect(): void {
    this.source?.close();
    this.source = undefined;
    this.stopPolling();
    clearTimeout(this.reconnecting);
  }

  /** Detects sleep: its connections are dead, but browsers take minutes to notice. */
  private readonly tick = (): void => {
    const slept = Date.now() - this.lastTick > (this.wasHidden ? SLEEP_HIDDEN_MS : SLEEP_MS);
    this.lastTick = Date.now();
    this.wasHidden = document.hidden;
    if (slept) this.renew();
  };

  readonly renew = (): void => {
    this.setState(this.wasOpen ? "reconnecting" : "connecting");
    this.connect();
  };

  private readonly noticeOffline = (): void => this.setState("offline");

  private setState(state: LiveState): void {
    if (state === this.state) return;
    this.state = state;
    for (const each of this.subscribers) each();
  }
}
