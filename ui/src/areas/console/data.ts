// What the pages of the console fetch, and what they make. Keys say which events make an answer old: see `live.ts`.

import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { get, post } from "@/api/client";
import type { components } from "@/api/schema";
import type { Page } from "@/api/types";
import { isOver } from "./dispatches/ended";
import { consoleKeys } from "./live";

type Schemas = components["schemas"];
/** The schema calls what has a default optional; it is always sent. */
type Sent<T, K extends keyof T> = T & { [Name in K]-?: Exclude<T[Name], undefined> };
export type Worker = Sent<Schemas["WorkerSummary"], "gpus" | "jobs" | "blocked">;
export type WorkerDetails = Sent<Schemas["WorkerDetails"], "gpus" | "jobs" | "blocked">;
export type Overview = Schemas["Overview"];
export type WorkerJob = Schemas["WorkerJob"];
export type Gpu = Schemas["Gpu"];
export type Fleet = Schemas["Fleet"];
export type Scaling = Schemas["FleetScalingStatus"];
export type Decision = Schemas["Decision"];
export type Dispatch = Schemas["Dispatch"];
export type AuditEntry = Schemas["AuditEntry"];
export type Attempt = Schemas["DispatchAttempt"];
export type Usage = Schemas["Usage"];
export type Stage = Schemas["Stage"];

const PAGE = 200;
/** So many pages at most, should a server have more of something than anybody looks through. */
const MOST_PAGES = 50;

/** All of a list, page by page. */
async function everyPage<T>(ask: (cursor: string | null) => Promise<Page<T>>): Promise<T[]> {
  const found: T[] = [];
  let cursor: string | null = null;
  for (let page = 0; page < MOST_PAGES; page += 1) {
    const { items, next_cursor }: Page<T> = await ask(cursor);
    found.push(...items);
    if (!next_cursor) break;
    cursor = next_cursor;
  }
  return found;
}

const REFETCH_MS = 10_000;
/** Some screens of them. */
const WORKERS = 50;

const after = (cursor: string | null) => ({ limit: PAGE, ...(cursor !== null && { cursor }) });

export interface WorkersAsked {
  state?: string;
  fleet?: string;
  stage?: string;
  search?: string;
  sort?: string;
}

/** With how many there are in each state, among those that the other filters leave. */
export type WorkerPage = Page<Worker> & { counts: Readonly<Record<string, number>> };

const askWorkers = async (query: object, signal: AbortSignal): Promise<WorkerPage> =>
  (await get("/api/admin/workers", { query: query as never, signal })) as unknown as WorkerPage;

/** As many as one scrolls to. */
export const workers = (asked: WorkersAsked) =>
  infiniteQueryOptions({
    queryKey: [...consoleKeys.workers, asked] as const,
    queryFn: ({ pageParam, signal }) =>
      askWorkers({ ...asked, limit: WORKERS, ...(pageParam && { cursor: pageParam }) }, signal),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
    // how far they are, and what their GPUs do, changes without an event
    refetchInterval: ({ state }) => (state.data?.pages.length ?? 1) * (REFETCH_MS / 2),
    placeholderData: (before) => before,
  });

/** The first few of a state; all are counted. */
export const someWorkers = (state: string, limit: number) =>
  queryOptions({
    queryKey: [...consoleKeys.workers, state, limit] as const,
    queryFn: ({ signal }) => askWorkers({ state, limit }, signal),
    refetchInterval: REFETCH_MS / 2,
  });

/** Who registered last, the newest first. */
export const registered = queryOptions({
  queryKey: [...consoleKeys.workers, "registered"] as const,
  queryFn: async ({ signal }) =>
    (await get("/api/admin/audit-logs", { query: { event: "register", limit: 20 }, signal })).items,
  refetchInterval: REFETCH_MS / 2,
  // who came before it is looked at is not who comes now
  gcTime: 0,
});

export const worker = (id: string) =>
  queryOptions({
    queryKey: consoleKeys.worker(id),
    queryFn: async ({ signal }) =>
      (await get("/api/admin/workers/{worker_id}", { path: { worker_id: id }, signal })) as WorkerDetails,
    refetchInterval: REFETCH_MS / 4,
  });

/** Asking is what makes it send them, so it is asked while one looks. */
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
        query: { limit: 50, ...(pageParam && { cursor: pageParam }) } as never,
        signal,
      }),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
  });

export const fleets = queryOptions({
  queryKey: consoleKeys.fleets,
  queryFn: ({ signal }) =>
    everyPage<Fleet>((cursor) => get("/api/admin/fleets", { query: after(cursor) as never, signal })),
});

const named = (stage: string, slug: string) => ({ stage: stage as Stage, slug });

export const fleet = (stage: string, slug: string) =>
  queryOptions({
    queryKey: consoleKeys.fleet(stage, slug),
    queryFn: ({ signal }) => get("/api/admin/fleets/{stage}/{slug}", { path: named(stage, slug), signal }),
  });

/** Machines boot and idle though nothing is written down for it. */
export const scaling = (stage: string, slug: string) =>
  queryOptions({
    queryKey: [...consoleKeys.fleet(stage, slug), "scaling"] as const,
    queryFn: ({ signal }) => get("/api/admin/fleets/{stage}/{slug}/scaling", { path: named(stage, slug), signal }),
    refetchInterval: REFETCH_MS,
  });

export const fleetMetrics = (stage: string, slug: string) =>
  queryOptions({
    queryKey: [...consoleKeys.fleet(stage, slug), "metrics"] as const,
    queryFn: ({ signal }) => get("/api/admin/fleets/{stage}/{slug}/metrics", { path: named(stage, slug), signal }),
    refetchInterval: REFETCH_MS,
  });

export const decisions = (stage: string, slug: string) =>
  infiniteQueryOptions({
    queryKey: [...consoleKeys.fleet(stage, slug), "decisions"] as const,
    queryFn: async ({ pageParam, signal }): Promise<Page<Decision>> =>
      get("/api/admin/fleets/{stage}/{slug}/decisions", {
        path: named(stage, slug),
        query: { limit: 50, ...(pageParam && { cursor: pageParam }) } as never,
        signal,
      }),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
  });

/** By day, UTC, both included. */
export const usage = (by: "fleet" | "workflow" | "tenant", from: string, to: string) =>
  queryOptions({
    queryKey: ["console", "usage", by, from, to] as const,
    queryFn: ({ signal }) => get("/api/admin/usage", { query: { by, from, to } as never, signal }),
  });

export const workflowNames = queryOptions({
  queryKey: ["console", "workflows", "names"] as const,
  queryFn: ({ signal }) =>
    everyPage<Schemas["WorkflowSummary"]>((cursor) =>
      get("/api/admin/workflows", { query: after(cursor) as never, signal }),
    ),
});

export interface DispatchesAsked {
  status?: string;
  stage?: string;
  workflow?: string;
  tenant?: string;
  worker?: string;
  search?: string;
}

export const dispatches = (asked: DispatchesAsked) =>
  infiniteQueryOptions({
    queryKey: [...consoleKeys.dispatches, asked] as const,
    queryFn: async ({ pageParam, signal }): Promise<Page<Dispatch>> =>
      get("/api/admin/dispatches", {
        query: { ...asked, limit: 100, ...(pageParam && { cursor: pageParam }) } as never,
        signal,
      }),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
    // how far they are changes without an event; the more pages there are, the rarer they are fetched again
    refetchInterval: ({ state }) => {
      const pages = state.data?.pages ?? [];
      const isAnyRunning = pages.some((page) => page.items.some(({ status }) => status === "leased"));
      return isAnyRunning ? (REFETCH_MS / 2) * pages.length : false;
    },
  });

export const dispatch = (id: string) =>
  queryOptions({
    queryKey: consoleKeys.dispatch(id),
    queryFn: ({ signal }) => get("/api/admin/dispatches/{dispatch_id}", { path: { dispatch_id: Number(id) }, signal }),
    refetchInterval: ({ state }) => {
      if (state.data && isOver(state.data.status)) return false;
      return state.data?.status === "leased" ? REFETCH_MS / 4 : REFETCH_MS;
    },
  });

/** Why it waits; asked for again, as its place in line changes with what others do. */
export const waitingOf = (id: string) =>
  queryOptions({
    queryKey: [...consoleKeys.dispatch(id), "waiting"] as const,
    queryFn: ({ signal }) =>
      get("/api/admin/dispatches/{dispatch_id}/waiting", { path: { dispatch_id: Number(id) }, signal }),
    refetchInterval: REFETCH_MS,
  });

/** Who had it, what came of it, and all that was written down of it, whichever workers it was with. */
export const historyOf = (id: string) =>
  infiniteQueryOptions({
    queryKey: [...consoleKeys.dispatch(id), "audit"] as const,
    queryFn: ({ pageParam, signal }) =>
      get("/api/admin/dispatches/{dispatch_id}/audit", {
        path: { dispatch_id: Number(id) },
        query: { limit: 50, ...(pageParam && { cursor: pageParam }) } as never,
        signal,
      }),
    initialPageParam: "",
    getNextPageParam: (page) => page.entries.next_cursor,
  });

export const joining = (stage: string, slug: string) =>
  queryOptions({
    queryKey: ["console", "join", stage, slug] as const,
    queryFn: ({ signal }) => get("/api/admin/fleets/{stage}/{slug}/join-command", { path: named(stage, slug), signal }),
    // it holds a secret: nothing of it stays behind
    gcTime: 0,
  });

export const doToWorker = {
  approve: (worker_id: string) => post("/api/admin/workers/{worker_id}/approve", { path: { worker_id } }),
  revoke: (worker_id: string) => post("/api/admin/workers/{worker_id}/revoke", { path: { worker_id } }),
  drain: (worker_id: string) => post("/api/admin/workers/{worker_id}/drain", { path: { worker_id } }),
  undrain: (worker_id: string) => post("/api/admin/workers/{worker_id}/undrain", { path: { worker_id } }),
  rotate: (worker_id: string) => post("/api/admin/workers/{worker_id}/rotate-token", { path: { worker_id } }),
};

export const overview = (range: "hour" | "day" | "week") =>
  queryOptions({
    queryKey: [...consoleKeys.samples, range] as const,
    queryFn: ({ signal }) => get("/api/admin/overview", { query: { range }, signal }),
    // what runs now changes between two samples
    refetchInterval: REFETCH_MS,
    placeholderData: (before) => before,
  });

/** How many deliveries of webhooks were given up, and how many are still to be made. */
export const deliveryCounts = queryOptions({
  queryKey: ["console", "webhooks", "counts"] as const,
  queryFn: ({ signal }) => get("/api/admin/webhooks/counts", { signal }),
  // what was told and lost on the way
  refetchInterval: 3 * REFETCH_MS,
});
