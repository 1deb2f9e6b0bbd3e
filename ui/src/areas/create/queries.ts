// Queries of Create.

import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import { call, get } from "@/api/client";
import { stringify } from "@/api/json";
import { fetchAllPages } from "@/api/paging";
import { Problem } from "@/api/problem";
import { keys } from "@/api/queries";
import type { components } from "@/api/schema";
import type { Choice } from "./inputs";
import type { DeskBatch } from "./submission";

export type Estimate = components["schemas"]["Estimate"];
export type AboutJob = components["schemas"]["AboutJob"];

export const presets = queryOptions({
  queryKey: keys.presets,
  queryFn: ({ signal }) =>
    fetchAllPages((cursor) => get("/api/presets", { query: { limit: 200, ...(cursor && { cursor }) }, signal })),
});

export const script = queryOptions({
  queryKey: ["script"] as const,
  queryFn: ({ signal }) => get("/api/desk/script", { signal }),
});

/** Query keys may contain 64-bit seeds, which JSON.stringify rejects. */
export const hashQueryKey = (key: readonly unknown[]): string => stringify(key);

export const estimate = (body: DeskBatch) =>
  queryOptions({
    queryKey: ["estimate", body] as const,
    queryKeyHashFn: hashQueryKey,
    queryFn: async ({ signal }) => (await call<Estimate>("POST", "/api/desk/batches/estimate", body, signal)).data,
    placeholderData: keepPreviousData,
    // the queue changes
    staleTime: 10_000,
    // keeps `done by` current
    refetchInterval: 60_000,
    retry: (count, thrown) => count < 1 && thrown instanceof Problem && thrown.isAway,
  });

/** Requirements that no worker has; null if one worker has all. */
export const missing = (choice: Choice) =>
  queryOptions({
    queryKey: ["missing", choice.slug] as const,
    queryFn: async ({ signal }) => {
      const query = choice.effectId === null ? { workflow_slug: choice.slug } : { effect_id: choice.effectId };
      return (await get("/api/missing", { query, signal })).missing;
    },
    // workers change
    staleTime: 10_000,
    enabled: !choice.waiting && !choice.isScript,
  });

export const aboutJob = (id: string): Promise<AboutJob> => get("/api/desk/jobs/{job_id}", { path: { job_id: id } });
