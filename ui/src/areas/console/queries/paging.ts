// Helpers of the console queries. The key of a query determines which events invalidate it: see `shared/live.ts`.

import type { components } from "@/api/schema";

export type Schemas = components["schemas"];

/** Fields with a default are optional in the schema, but the server always sends them. */
export type Sent<T, K extends keyof T> = T & { [Name in K]-?: Exclude<T[Name], undefined> };

export const PAGE = { limit: 200 } as const;

export const REFETCH_MS = 10_000;
