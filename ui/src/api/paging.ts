import type { Page } from "./types";

/** Guards against endless lists. */
const MAX_PAGES = 50;

/** Fetches all pages of a list. A page of large items may have fewer items than its limit. */
export async function fetchAllPages<T>(ask: (cursor: string | null) => Promise<Page<T>>): Promise<T[]> {
  const found: T[] = [];
  let cursor: string | null = null;
  for (let page = 0; page < MAX_PAGES; page += 1) {
    const { items, next_cursor }: Page<T> = await ask(cursor);
    found.push(...items);
    if (!next_cursor) break;
    cursor = next_cursor;
  }
  return found;
}
