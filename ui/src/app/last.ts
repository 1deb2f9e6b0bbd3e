// How one left each area: who comes back finds it so.

import type { Search } from "./search";

/** Not those of Create: a draft is kept by itself, and `from` would replace it. */
const AREAS: readonly string[] = ["/queue", "/gallery"];
const last = new Map<string, Search>();

/** What is selected or open is done with when one leaves. */
const PASSING: readonly string[] = ["sel", "job", "batch", "open", "compare"];
const KEEPS_BATCH = "/gallery";

export function remember(path: string, search: Search): void {
  if (!AREAS.includes(path)) return;
  const isKept = (name: string) => !PASSING.includes(name) || (name === "batch" && path === KEEPS_BATCH);
  last.set(path, Object.fromEntries(Object.entries(search).filter(([name]) => isKept(name))));
}

/** The filters, words and order that were there. */
export const lastSearch = (path: string): Search => last.get(path) ?? {};
