// What only Create asks the server for.

import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import { call, get } from "@/api/client";
import { stringify } from "@/api/json";
import { Problem } from "@/api/problem";
import { keys } from "@/api/queries";
import type { components } from "@/api/schema";
import type { Choice } from "./inputs";
import type { DeskBatch } from "./submission";

export type Estimate = components["schemas"]["Estimate"];
export type AboutJob = components["schemas"]["AboutJob"];

export const presets = queryOptions({
  queryKey: keys.presets,
  queryFn: async ({ signal }) => (await get("/api/presets", { query: { limit: 200 }, signal })).items,
});

export const script = queryOptions({
  queryKey: ["script"] as const,
  queryFn: ({ signal }) => get("/api/desk/script", { signal }),
});

/** For keys that have seeds in them: those may have more digits than the browser writes as JSON. */
export const hashQueryKey = (key: readonly unknown[]): string => stringify(key);

/** What a batch would be; asked anew with each change of it. */
export const estimate = (body: DeskBatch) =>
  queryOptions({
    queryKey: ["estimate", body] as const,
    queryKeyHashFn: hashQueryKey,
    queryFn: async ({ signal }) => (await call<Estimate>("POST", "/api/desk/batches/estimate", body, signal)).data,
    placeholderData: keepPreviousData,
    // what waits in the queue changes
    staleTime: 10_000,
    // `done by` is a time of day
    refetchInterval: 60_000,
    retry: (count, thrown) => count < 1 && thrown instanceof Problem && thrown.isAway,
  });

/** What no worker has of what a workflow needs, whatever is filled in; null where one has everything. */
export const missing = (choice: Choice) =>
  queryOptions({
    queryKey: ["missing", choice.slug] as const,
    queryFn: async ({ signal }) => {
      const query = choice.effectId === null ? { workflow_slug: choice.slug } : { effect_id: choice.effectId };
      return (await get("/api/missing", { query, signal })).missing;
    },
    // workers come and go
    staleTime: 10_000,
    enabled: !choice.waiting && !choice.isScript,
  });

export const aboutJob = (id: string): Promise<AboutJob> => get("/api/desk/jobs/{job_id}", { path: { job_id: id } });
