// What one tab changes is broadcast to the others of this browser. The stream of events has jobs, batches and marks;
// marks of another tab arrive sooner this way.

import type { QueryClient } from "@tanstack/react-query";

/** What was changed: the first words of queries, and of outputs those that were marked; null: any of them. */
export interface TabChange {
  words: readonly string[];
  outputs: readonly string[] | null;
}

const GALLERY: readonly string[] = ["gallery", "gallery-index", "collections"];

const CHANGES: readonly [path: string, ...words: string[]][] = [
  ["/api/gallery/", ...GALLERY],
  ["/api/collections", ...GALLERY],
  ["/api/presets", "presets"],
  ["/api/workflows", "workflows", "missing"],
];
// these read, or are told as removed jobs
const QUIET = ["/api/gallery/zip", "/api/gallery/delete"];

const channel = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel("comfyrelay.changes");
const listeners = new Set<(change: TabChange) => void>();
channel?.addEventListener("message", ({ data }: MessageEvent<TabChange>) => {
  for (const each of listeners) each(data);
});

/** What a request that went well has changed; null where others need not know. */
export function changedBy(path: string, body: unknown): TabChange | null {
  if (QUIET.some((each) => path.startsWith(each))) return null;
  const [, ...words] = CHANGES.find(([each]) => path.startsWith(each)) ?? [""];
  const ids = (body as { ids?: unknown } | undefined)?.ids;
  return words.length ? { words, outputs: Array.isArray(ids) ? ids.map(String) : [] } : null;
}

export function broadcastChange(path: string, body: unknown): void {
  const change = changedBy(path, body);
  if (change) channel?.postMessage(change);
}

export function onTabChange(listener: (change: TabChange) => void): () => void {
  listeners.add(listener);
  return () => void listeners.delete(listener);
}

/** Another browser has marked outputs, or changed collections. */
export function marked(outputs: readonly string[], isAll: boolean): void {
  for (const each of listeners) each({ words: GALLERY, outputs: isAll ? null : outputs });
}

/** What is marked changes only those lists that are chosen by it; an index of all may be long. */
const CHOSEN_BY = ["mark", "collection", "q"];
const isTouched = ([word, ...rest]: readonly unknown[]): boolean => {
  if (word === "collections" || !GALLERY.includes(String(word))) return true;
  const wanted = rest.at(-1);
  return typeof wanted === "object" && wanted !== null && CHOSEN_BY.some((each) => each in wanted);
};

/** Fetch anew what another tab, or another browser, has changed. */
export const followTabs = (client: QueryClient): (() => void) =>
  onTabChange(({ words }) => {
    void client.invalidateQueries({
      predicate: ({ queryKey }) => words.includes(String(queryKey[0])) && isTouched(queryKey),
    });
  });
