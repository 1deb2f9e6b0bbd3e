// Selected outputs. A range starts at the last one touched.

import { MAX_LIST_IN_URL } from "@/lib/search-params";

export interface Selection {
  ids: ReadonlySet<string>;
  last: string | null;
}

export const NONE: Selection = { ids: new Set(), last: null };
export const ALL = "all";

export function toggleSelected({ ids }: Selection, id: string): Selection {
  const next = new Set(ids);
  if (!next.delete(id)) next.add(id);
  return { ids: next, last: id };
}

/** Adds the range from the last touched output. */
export function extendSelection(selection: Selection, order: readonly string[], id: string): Selection {
  const [from, to] = [order.indexOf(selection.last ?? id), order.indexOf(id)];
  if (to < 0) return selection;
  if (from < 0) return toggleSelected(selection, id);
  const between = order.slice(Math.min(from, to), Math.max(from, to) + 1);
  return { ids: new Set([...selection.ids, ...between]), last: selection.last ?? id };
}

export const selectAllOf = (order: readonly string[]): Selection => ({ ids: new Set(order), last: order[0] ?? null });

/** Drops outputs that no longer exist. */
export function keepExisting(selection: Selection, has: (id: string) => boolean): Selection {
  const ids = [...selection.ids].filter(has);
  return ids.length === selection.ids.size ? selection : { ids: new Set(ids), last: selection.last };
}

export function formatSelection({ ids }: Selection, total: number): string | undefined {
  if (!ids.size) return undefined;
  if (ids.size === total && total > 1) return ALL;
  return ids.size > MAX_LIST_IN_URL ? undefined : [...ids].join(",");
}

export function parseSelection(text: string | undefined, order: readonly string[]): Selection {
  if (!text) return NONE;
  if (text === ALL) return selectAllOf(order);
  const ids = text.split(",").filter(Boolean);
  return { ids: new Set(ids), last: ids.at(-1) ?? null };
}

/** In display order. */
export const sortByOrder = (ids: ReadonlySet<string>, order: readonly string[]): string[] =>
  order.filter((each) => ids.has(each));
