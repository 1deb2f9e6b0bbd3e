// Broadcasts changes to the other tabs of this browser. The event stream covers jobs, batches and marks; marks arrive
// faster this way.

import type { QueryClient } from "@tanstack/react-query";

/** Keys of the changed queries, and ids of the marked outputs; null means any output. */
export interface TabChange {
  keys: readonly string[];
  outputs: readonly string[] | null;
}

const GALLERY: readonly string[] = ["gallery", "gallery-index", "collections"];

const CHANGES: readonly [path: string, ...keys: string[]][] = [
  ["/api/gallery/", ...GALLERY],
  ["/api/collections", ...GALLERY],
  ["/api/presets", "presets"],
  ["/api/workflows", "workflows", "missing"],
];
// these requests change nothing, or the event stream reports their changes
const QUIET = ["/api/gallery/zip", "/api/gallery/delete"];

const channel = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel("comfyrelay.changes");
const listeners = new Set<(change: TabChange) => void>();
channel?.addEventListener("message", ({ data }: MessageEvent<TabChange>) => {
  for (const each of listeners) each(data);
});

/** The change that a successful request made; null if it does not affect other tabs. */
export function changeOf(path: string, body: unknown): TabChange | null {
  if (QUIET.some((each) => path.startsWith(each))) return null;
  const [, ...keys] = CHANGES.find(([each]) => path.startsWith(each)) ?? [""];
  const ids = (body as { ids?: unknown } | undefined)?.ids;
  return keys.length ? { keys, outputs: Array.isArray(ids) ? ids.map(String) : [] } : null;
}

export function broadcastChange(path: string, body: unknown): void {
  const change = changeOf(path, body);
  if (change) channel?.postMessage(change);
}

export function onTabChange(listener: (change: TabChange) => void): () => void {
  listeners.add(listener);
  return () => void listeners.delete(listener);
}

/** Another browser has marked outputs or changed collections. */
export function notifyMarked(outputs: readonly string[], isAll: boolean): void {
  for (const each of listeners) each({ keys: GALLERY, outputs: isAll ? null : outputs });
}

/** Marks affect only lists that are filtered by them. The index of all outputs may be long. */
const MARK_FILTERS = ["mark", "collection", "q"];
const isAffected = ([key, ...rest]: readonly unknown[]): boolean => {
  if (key === "collections" || !GALLERY.includes(String(key))) return true;
  const wanted = rest.at(-1);
  return typeof wanted === "object" && wanted !== null && MARK_FILTERS.some((each) => each in wanted);
};

/** Refetches queries that another tab or browser has changed. */
export const subscribeToTabs = (client: QueryClient): (() => void) =>
  onTabChange(({ keys }) => {
    void client.invalidateQueries({
      predicate: ({ queryKey }) => keys.includes(String(queryKey[0])) && isAffected(queryKey),
    });
  });
