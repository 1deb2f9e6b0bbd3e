import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { get, post } from "@/api/client";
import type { Page } from "@/api/types";
import { consoleKeys } from "../shared/live";
import type { Stage } from "./fleets";
import { REFETCH_MS, type Schemas, type Sent } from "./paging";

export type Worker = Sent<Schemas["WorkerSummary"], "gpus" | "jobs" | "blocked">;

export type WorkerDetails = Sent<Schemas["WorkerDetails"], "gpus" | "jobs" | "blocked">;

export type WorkerState = Schemas["WorkerState"];
export type WorkerJob = Schemas["WorkerJob"];

export type Gpu = Schemas["Gpu"];

export type AuditEntry = Schemas["AuditEntry"];

const WORKERS = 50;

export interface WorkersQuery {
  state?: WorkerState;
  fleet?: string;
  stage?: Stage;
  search?: string;
  sort?: string;
}

/** Counts by state respect the other filters. */
export type WorkerPage = Page<Worker> & { counts: Readonly<Record<string, number>> };

const fetchWorkers = async (
  query: WorkersQuery & { limit: number; cursor?: string },
  signal: AbortSignal,
): Promise<WorkerPage> => (await get("/api/admin/workers", { query, signal })) as unknown as WorkerPage;

export const workers = (asked: WorkersQuery) =>
  infiniteQueryOptions({
    queryKey: [...consoleKeys.workers, asked] as const,
    queryFn: ({ pageParam, signal }) =>
      fetchWorkers({ ...asked, limit: WORKERS, ...(pageParam && { cursor: pageParam }) }, signal),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
    // progress and GPU load change without events
    refetchInterval: ({ state }) => (state.data?.pages.length ?? 1) * (REFETCH_MS / 2),
    placeholderData: (before) => before,
  });

/** First workers in a state, with all counts. */
export const someWorkers = (state: WorkerState, limit: number) =>
  queryOptions({
    queryKey: [...consoleKeys.workers, state, limit] as const,
    queryFn: ({ signal }) => fetchWorkers({ state, limit }, signal),
    refetchInterval: REFETCH_MS / 2,
  });

/** Latest registrations, newest first. */
export const registered = queryOptions({
  queryKey: [...consoleKeys.workers, "registered"] as const,
  queryFn: async ({ signal }) =>
    (await get("/api/admin/audit-logs", { query: { event: "register", limit: 20 }, signal })).items,
  refetchInterval: REFETCH_MS / 2,
  // earlier registrations must not appear as new
  gcTime: 0,
});

export const worker = (id: string) =>
  queryOptions({
    queryKey: consoleKeys.worker(id),
    queryFn: async ({ signal }) =>
      (await get("/api/admin/workers/{worker_id}", { path: { worker_id: id }, signal })) as WorkerDetails,
    refetchInterval: REFETCH_MS / 4,
  });

/** The request makes the worker send its log, so poll while it is shown. */
export const logsOf = (id: string) =>
  queryOptions({
    queryKey: ["console", "logs", id] as const,
    queryFn: ({ signal }) => get("/api/admin/workers/{worker_id}/logs", { path: { worker_id: id }, signal }),
    refetchInterval: ({ state }) => (state.data?.received_at ? REFETCH_MS / 4 : REFETCH_MS / 10),
    gcTime: 0,
  });

export const auditOf = (id: string) =>
  infiniteQueryOptions({
    queryKey: [...consoleKeys.worker(id), "audit"] as const,
    queryFn: async ({ pageParam, signal }): Promise<Page<AuditEntry>> =>
      get("/api/admin/workers/{worker_id}/audit-logs", {
        path: { worker_id: id },
        query: { limit: 50, ...(pageParam && { cursor: Number(pageParam) }) },
        signal,
      }),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
  });

export const workerActions = {
  approve: (worker_id: string) => post("/api/admin/workers/{worker_id}/approve", { path: { worker_id } }),
  revoke: (worker_id: string) => post("/api/admin/workers/{worker_id}/revoke", { path: { worker_id } }),
  drain: (worker_id: string) => post("/api/admin/workers/{worker_id}/drain", { path: { worker_id } }),
  undrain: (worker_id: string) => post("/api/admin/workers/{worker_id}/undrain", { path: { worker_id } }),
  unblock: (worker_id: string) => post("/api/admin/workers/{worker_id}/unblock", { path: { worker_id } }),
  rotate: (worker_id: string) => post("/api/admin/workers/{worker_id}/rotate-token", { path: { worker_id } }),
};
