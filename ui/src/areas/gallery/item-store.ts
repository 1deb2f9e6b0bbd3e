// Cache of outputs by id. The grid knows only positions; outputs are fetched in batches as they come into view.

import { useSyncExternalStore } from "react";
import { get } from "@/api/client";
import { onTabChange } from "@/api/tabs";
import type { Item } from "./item";

const IDS_PER_REQUEST = 60;
/** Outputs that scroll past faster are not fetched. */
const SETTLE_MS = 60;
/** URLs expire after 15 minutes. */
const FRESH_MS = 5 * 60_000;

interface Cached {
  item: Item;
  at: number;
}

export class ItemStore {
  private readonly cached = new Map<string, Cached>();
  private readonly missing = new Set<string>();
  private readonly asked = new Set<string>();
  private readonly watching = new Set<() => void>();
  private readonly touched = new Map<string, number>();
  private changes = 0;
  private wanted: readonly string[] = [];
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly fetch: (ids: readonly string[]) => Promise<readonly Item[]>,
    private readonly now: () => number = Date.now,
  ) {}

  readonly watch = (listener: () => void): (() => void) => {
    this.watching.add(listener);
    return () => void this.watching.delete(listener);
  };

  get(id: string): Item | undefined {
    return this.cached.get(id)?.item;
  }

  /** Whether the server does not have the output. */
  isGone(id: string): boolean {
    return this.missing.has(id);
  }

  /** Replaces the set of visible ids. */
  want(ids: readonly string[]): void {
    this.wanted = ids;
    this.timer ??= setTimeout(() => {
      this.timer = undefined;
      void this.load(this.wanted);
    }, SETTLE_MS);
  }

  /** Fetches these now. */
  async all(ids: readonly string[]): Promise<Item[]> {
    await this.load(ids);
    return ids.map((id) => this.get(id)).filter((each) => each !== undefined);
  }

  /** Refetches outputs with expired URLs or changes from another tab. */
  async renew(ids: readonly string[]): Promise<void> {
    const known = ids.filter((id) => this.cached.has(id));
    for (const id of known) {
      const found = this.cached.get(id);
      if (found) this.cached.set(id, { ...found, at: 0 });
    }
    await this.load(known);
  }

  /** Refetches visible outputs now and the others when they come into view. */
  async renewAll(): Promise<void> {
    for (const [id, found] of this.cached) this.cached.set(id, { ...found, at: 0 });
    await this.load(this.wanted);
  }

  put(items: readonly Item[]): void {
    const at = this.now();
    for (const item of items) {
      this.cached.set(item.id, { item, at });
      this.missing.delete(item.id);
    }
    if (items.length) this.notify();
  }

  change(ids: Iterable<string>, change: (item: Item) => Item): void {
    for (const id of ids) {
      const found = this.cached.get(id);
      if (found) this.cached.set(id, { ...found, item: change(found.item) });
      this.touched.set(id, ++this.changes);
    }
    this.notify();
  }

  private async load(ids: readonly string[]): Promise<void> {
    const due = ids.filter((id) => !this.asked.has(id) && !this.missing.has(id) && !this.isFresh(id));
    const parts = Array.from({ length: Math.ceil(due.length / IDS_PER_REQUEST) }, (_each, index) =>
      due.slice(index * IDS_PER_REQUEST, (index + 1) * IDS_PER_REQUEST),
    );
    await Promise.all(parts.map((each) => this.loadSome(each)));
  }

  private async loadSome(ids: readonly string[]): Promise<void> {
    for (const id of ids) this.asked.add(id);
    try {
      const began = this.changes;
      const found = await this.fetch(ids);
      const there = new Set(found.map((each) => each.id));
      for (const id of ids) if (!there.has(id)) this.missing.add(id);
      // keep local changes that are newer than the request
      this.put(found.filter((each) => (this.touched.get(each.id) ?? 0) <= began));
      if (there.size < ids.length) this.notify();
    } catch {
      // retried when they are visible again; the shell reports an unreachable server
    } finally {
      for (const id of ids) this.asked.delete(id);
    }
  }

  private isFresh(id: string): boolean {
    const found = this.cached.get(id);
    return found !== undefined && this.now() - found.at < FRESH_MS;
  }

  private notify(): void {
    for (const each of this.watching) each();
  }
}

export const items = new ItemStore(async (ids) => {
  const { items: found } = await get("/api/gallery/items", { query: { ids: ids.join(",") } });
  return found as Item[];
});

onTabChange(({ outputs }) => void (outputs ? items.renew(outputs) : items.renewAll()));

export const useItem = (id: string): Item | undefined => useSyncExternalStore(items.watch, () => items.get(id));
export const useIsMissing = (id: string): boolean => useSyncExternalStore(items.watch, () => items.isGone(id));
