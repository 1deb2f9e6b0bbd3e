// The state of the setup. After a reload, each step is recognized by what already exists on the server.

import { queryOptions } from "@tanstack/react-query";
import { get } from "@/api/client";
import type { Stage } from "./create";

const REFETCH_MS = 1500;
export const fleets = queryOptions({
  queryKey: ["setup", "fleets"] as const,
  queryFn: async ({ signal }) => (await get("/api/admin/fleets", { signal })).items,
});

/** Workers that can run a job: not offline and not revoked. */
export const workers = queryOptions({
  queryKey: ["setup", "workers"] as const,
  queryFn: async ({ signal }) =>
    (await get("/api/admin/workers", { signal })).items.filter(
      ({ state }) => state !== "offline" && state !== "revoked",
    ),
  // wait for the first worker to register
  refetchInterval: REFETCH_MS,
});

export const effects = queryOptions({
  queryKey: ["setup", "effects"] as const,
  queryFn: async ({ signal }) => (await get("/api/admin/effects", { signal })).items,
});

export const joinCommand = (stage: Stage, slug: string) =>
  queryOptions({
    queryKey: ["setup", "join", stage, slug] as const,
    queryFn: ({ signal }) => get("/api/admin/fleets/{stage}/{slug}/join-command", { path: { stage, slug }, signal }),
  });

export const firstJob = (id: string) =>
  queryOptions({
    queryKey: ["setup", "job", id] as const,
    queryFn: ({ signal }) => get("/api/ai-jobs/{job_id}", { path: { job_id: id }, signal }),
    refetchInterval: ({ state }) => (state.data && isOver(state.data.status) ? false : REFETCH_MS / 2),
  });

/** The newest job, or null. After a reload, the setup shows it instead of running and charging a second one. */
export const newestJob = queryOptions({
  queryKey: ["setup", "newest-job"] as const,
  queryFn: async ({ signal }) => (await get("/api/ai-jobs", { query: { limit: 1 }, signal })).items[0] ?? null,
  refetchInterval: ({ state }) => (state.data && isOver(state.data.status) ? false : REFETCH_MS),
});

export const isOver = (status: string): boolean => ["completed", "failed", "canceled"].includes(status);
