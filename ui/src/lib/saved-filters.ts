// The filters of an area, restored when the user comes back to it.

import type { Search } from "./search-params";

/** Create is missing on purpose: it has drafts, and `from` would replace them. */
const AREAS: readonly string[] = ["/queue", "/gallery"];
/** The selection and the open item are not restored. */
const TRANSIENT: readonly string[] = ["sel", "job", "batch", "open", "compare"];
/** In the gallery, `batch` is a filter. */
const KEEPS_BATCH = "/gallery";

const saved = new Map<string, Search>();

export function saveFilters(path: string, search: Search): void {
  if (!AREAS.includes(path)) return;
  const isKept = (name: string) => !TRANSIENT.includes(name) || (name === "batch" && path === KEEPS_BATCH);
  saved.set(path, Object.fromEntries(Object.entries(search).filter(([name]) => isKept(name))));
}

/** Filters, search text and sort order of the last visit. */
export const savedFilters = (path: string): Search => saved.get(path) ?? {};
