// The stream of events, as this tab hears it. The browser reconnects by itself, and the server replays what was missed. Where it
// gives up, or where the machine slept, a new stream is opened and everything is fetched anew; while there is none,
// what is looked at is fetched again and again.

import type { QueryClient } from "@tanstack/react-query";
import { parse } from "@/api/json";
import type { Counts } from "@/api/queries";
import { Applying, type Changed, type Gallery, type Progress } from "./apply";
import type { Source } from "./shared";

export const PATH = "/api/events";
export const POLL_MS = 2000;
export const AGAIN_MS = 30_000;
/** Longer than this between two ticks, and the machine slept. */
export const SLEPT_MS = 20_000;
/** The same in a tab that nobody sees: browsers let it tick once a minute. */
export const SLEPT_UNSEEN_MS = 150_000;
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

export interface Outside {
  open: (path: string) => Source;
  /** Whether the server answers, and lets us in. */
  reach: () => Promise<boolean>;
}

export class Connection {
  state: LiveState = "connecting";
  private readonly applying: Applying;
  private readonly watching = new Set<() => void>();
  private readonly listeners = new Map<keyof Events, Set<(data: never) => void>>();
  private source: Source | undefined;
  private wasOpen = false;
  private polling: ReturnType<typeof setInterval> | undefined;
  private again: ReturnType<typeof setTimeout> | undefined;
  private ticking: ReturnType<typeof setInterval> | undefined;
  private lastTick = 0;
  private wasHidden = false;

  constructor(
    client: QueryClient,
    private readonly outside: Outside,
  ) {
    this.applying = new Applying(client);
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
    this.applying.stop();
  }

  on<K extends keyof Events>(kind: K, listener: Listener<K>): () => void {
    const found = this.listeners.get(kind) ?? new Set();
    this.listeners.set(kind, found.add(listener as (data: never) => void));
    return () => void found.delete(listener as (data: never) => void);
  }

  readonly watch = (listener: () => void): (() => void) => {
    this.watching.add(listener);
    return () => void this.watching.delete(listener);
  };

  private connect(): void {
    this.disconnect();
    const source = this.outside.open(PATH);
    this.source = source;
    let isFirst = true;
    source.onopen = () => {
      this.stopPolling();
      // what was fetched before the stream began may be old; later ones are replayed by the server. A page that has just
      // been opened is not made to wait for all of it twice
      if (isFirst && this.wasOpen) this.applying.reset();
      else if (isFirst) this.applying.resetSoon();
      isFirst = false;
      this.wasOpen = true;
      this.become("live");
    };
    source.onerror = () => this.failed(source);
    this.subscribe(source, "changed", (data) => this.applying.changed(data));
    this.subscribe(source, "progress", (data) => this.applying.progress(data));
    this.subscribe(source, "queue", (data) => this.applying.queue(data));
    this.subscribe(source, "gallery", (data) => this.applying.gallery(data));
    this.subscribe(source, "wallet", () => this.applying.wallet());
    this.subscribe(source, "reset", () => this.applying.reset());
  }

  private subscribe<K extends keyof Events>(source: Source, kind: K, apply: (data: Events[K]) => void): void {
    source.addEventListener(kind, (event) => {
      const { data } = event as MessageEvent<string>;
      const found = (data ? parse(data) : null) as Events[K];
      apply(found);
      for (const each of this.listeners.get(kind) ?? []) each(found as never);
    });
  }

  private failed(source: Source): void {
    if (source !== this.source) return;
    if (source.readyState !== source.CLOSED) {
      // the browser tries again by itself
      this.become(navigator.onLine === false ? "offline" : this.wasOpen ? "reconnecting" : "connecting");
      this.poll();
      return;
    }
    // it has given up: refused, or not there
    this.disconnect();
    this.become("reconnecting");
    this.poll();
    this.again = setTimeout(() => this.connect(), AGAIN_MS);
  }

  private poll(): void {
    if (this.polling) return;
    const ask = async () => {
      if (document.hidden) return;
      if (!(await this.outside.reach())) {
        this.become(navigator.onLine === false ? "offline" : "reconnecting");
        return;
      }
      if (!this.polling) return;
      this.become("polling");
      this.applying.reset();
    };
    this.polling = setInterval(() => void ask(), POLL_MS);
    void ask();
  }

  private stopPolling(): void {
    clearInterval(this.polling);
    this.polling = undefined;
  }

  private disconnect(): void {
    this.source?.close();
    this.source = undefined;
    this.stopPolling();
    clearTimeout(this.again);
  }

  /** A machine that slept has lost its connections, and no browser notices for minutes. */
  private readonly tick = (): void => {
    const slept = Date.now() - this.lastTick > (this.wasHidden ? SLEPT_UNSEEN_MS : SLEPT_MS);
    this.lastTick = Date.now();
    this.wasHidden = document.hidden;
    if (slept) this.renew();
  };

  readonly renew = (): void => {
    this.become(this.wasOpen ? "reconnecting" : "connecting");
    this.connect();
  };

  private readonly noticeOffline = (): void => this.become("offline");

  private become(state: LiveState): void {
    if (state === this.state) return;
    this.state = state;
    for (const each of this.watching) each();
  }
}
