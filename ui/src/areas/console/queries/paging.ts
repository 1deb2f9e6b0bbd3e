// Shared by the console queries. Their keys say which events invalidate them: see `shared/live.ts`.

import type { components } from "@/api/schema";
import type { Page } from "@/api/types";

export type Schemas = components["schemas"];

/** Fields with a default are optional in the schema, but the server always sends them. */
export type Sent<T, K extends keyof T> = T & { [Name in K]-?: Exclude<T[Name], undefined> };

export const PAGE = { limit: 200 } as const;

/** Guards against endless lists. */
const MAX_PAGES = 50;

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

export const REFETCH_MS = 10_000;
