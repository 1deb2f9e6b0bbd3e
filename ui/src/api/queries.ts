// The queries of the app. Live events find queries by the first part of their key, so use these keys.

import { infiniteQueryOptions, type Query, QueryClient, queryOptions, useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { get } from "./client";
import { fetchAllPages } from "./paging";
import { CHOICES_LIMIT, QUEUE_LIMIT } from "./prefetch";
import { Problem } from "./problem";
import type { AboutJob, Batch, Effect, Job, Page, PublicEffect, QueueEntry, QueueItem, Slot } from "./types";

export const keys = {
  me: ["me"] as const,
  desk: ["desk"] as const,
  counts: ["counts"] as const,
  jobs: ["jobs"] as const,
  job: (id: string) => ["job", id] as const,
  history: (id: string) => ["job", id, "history"] as const,
  batches: ["batches"] as const,
  batch: (id: string) => ["batch", id] as const,
  queue: ["queue"] as const,
  slots: ["slots"] as const,
  gallery: ["gallery"] as const,
  effects: ["effects"] as const,
  workflows: ["workflows"] as const,
  presets: ["presets"] as const,
  views: ["views"] as const,
  wallet: ["wallet"] as const,
};

/** Keys of queries that live events update. They are refetched if events may have been missed. */
export const LIVE: readonly string[] = [
  "counts",
  "jobs",
  "job",
  "batches",
  "batch",
  "queue",
  "slots",
  "gallery",
  "wallet",
];

/** Keys of queries that contain signed file URLs, which expire. */
const WITH_URLS: readonly string[] = ["job", "jobs", "queue", "gallery", "effects", "workflows"];

const MINUTE = 60_000;
const REFETCH_MS = 5000;
/** Default lifetime of a file URL. */
const URL_SECONDS = 900;
/** Part of the lifetime after which URLs are renewed. Poster URLs may already be half expired when they arrive. */
const FRESH_PART = 0.4;

/** Milliseconds until a query must be refetched to renew its URLs, or false for never. */
function renewsIn(client: QueryClient, { queryKey, state }: Pick<Query, "queryKey" | "state">): number | false {
  if (!WITH_URLS.includes(String(queryKey[0])) || !state.dataUpdatedAt) return false;
  const seconds = client.getQueryData(entry.queryKey)?.url_seconds ?? URL_SECONDS;
  // at least REFETCH_MS, in case the last refetch failed
  return Math.max(REFETCH_MS, state.dataUpdatedAt + seconds * 1000 * FRESH_PART - Date.now());
}

/** Whether the server is unreachable, busy, or without something that it needs. */
const isOutage = (thrown: unknown): boolean => thrown instanceof Problem && [0, 503].includes(thrown.status);

/** Refetches active queries with file URLs, after one of the URLs has failed. */
export function renewUrls(client: QueryClient): void {
  const predicate = ({ queryKey: [key] }: Pick<Query, "queryKey">) => WITH_URLS.includes(String(key));
  void client.invalidateQueries({ predicate, refetchType: "active" }, { cancelRefetch: false });
}

export function makeQueryClient(): QueryClient {
  const client: QueryClient = new QueryClient({
    defaultOptions: {
      queries: {
        // live events invalidate queries when data changes
        staleTime: MINUTE,
        gcTime: 10 * MINUTE,
        // no event says that a database is back
        refetchInterval: (query) => (isOutage(query.state.error) ? REFETCH_MS : renewsIn(client, query)),
        // hidden tabs do not renew URLs
        refetchOnWindowFocus: (query) => renewsIn(client, query) === REFETCH_MS && "always",
        retry: (count, thrown) => count < 2 && (!(thrown instanceof Problem) || isOutage(thrown)),
      },
    },
  });
  return client;
}

export const me = queryOptions({
  queryKey: keys.me,
  queryFn: ({ signal }) => get("/api/me", { signal }),
  staleTime: Number.POSITIVE_INFINITY,
});

/** Whether this is a desk or a server, and how to sign in; null on a desk that needs a sign-in. */
export const entry = queryOptions({
  queryKey: ["entry"] as const,
  queryFn: async ({ signal }) => {
    try {
      return await get("/api/entry", { signal });
    } catch (thrown) {
      if (thrown instanceof Problem && thrown.status === 401) return null;
      throw thrown;
    }
  },
  staleTime: Number.POSITIVE_INFINITY,
});

/** The desk; null on a server. */
export const desk = queryOptions({
  queryKey: keys.desk,
  queryFn: async ({ client, signal }) => {
    const found = await client.ensureQueryData(entry);
    return found?.is_desk === false ? null : get("/api/desk", { signal });
  },
  staleTime: 5 * MINUTE,
  // while the simulator runs the examples, check whether a ComfyUI has appeared
  refetchInterval: ({ state }) => (state.data?.simulated_jobs === "examples" ? REFETCH_MS : false),
});

/** The number of jobs by status, and since when the queue is paused. */
export interface Counts {
  counts: Record<string, number>;
  waiting: number;
  running: number;
  pausedAt: string | null;
}

/** The counts of a response or an event. */
export const countsOf = (queue: { counts: Record<string, number>; paused_at?: string | null }): Counts => ({
  counts: queue.counts,
  waiting: queue.counts.queued ?? 0,
  running: queue.counts.processing ?? 0,
  pausedAt: queue.paused_at ?? null,
});

export const counts = queryOptions({
  queryKey: keys.counts,
  queryFn: async ({ signal }): Promise<Counts> => countsOf(await get("/api/queue/counts", { signal })),
});

export interface JobsAsked {
  status?: string;
  workflow?: string;
  batch_id?: string;
  q?: string;
}

export const jobs = (asked: JobsAsked = {}, limit = 50) =>
  infiniteQueryOptions({
    queryKey: [...keys.jobs, asked, limit] as const,
    queryFn: async ({ pageParam, signal }): Promise<Page<Job>> =>
      (await get("/api/ai-jobs", {
        query: { ...asked, limit, ...(pageParam && { cursor: pageParam }) },
        signal,
      })) as Page<Job>,
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
  });

export interface QueueAsked {
  status?: string;
  workflow?: string;
  q?: string;
  sort?: string;
}

/** Batches and single jobs: running and waiting ones in order, then finished ones. */
export const queue = (asked: QueueAsked = {}, limit = QUEUE_LIMIT) =>
  infiniteQueryOptions({
    queryKey: [...keys.queue, asked, limit] as const,
    queryFn: async ({ pageParam, signal }): Promise<Page<QueueEntry>> =>
      (await get("/api/queue", {
        query: { ...asked, limit, ...(pageParam && { cursor: pageParam }) },
        signal,
      })) as Page<QueueEntry>,
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
  });

/** All items of a batch. Each is represented by its newest attempt. */
export const batchItems = (id: string) =>
  infiniteQueryOptions({
    queryKey: [...keys.queue, "items", id] as const,
    queryFn: async ({ pageParam, signal }): Promise<Page<QueueItem>> =>
      (await get("/api/queue/{batch_id}/items", {
        path: { batch_id: id },
        query: { limit: 200, ...(pageParam && { cursor: pageParam }) },
        signal,
      })) as Page<QueueItem>,
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
  });

export const batch = (id: string) =>
  queryOptions({
    queryKey: keys.batch(id),
    queryFn: async ({ signal }): Promise<Batch> => get("/api/batches/{batch_id}", { path: { batch_id: id }, signal }),
  });

/** The slots that run jobs; empty for users who may not see them. */
export const slots = queryOptions({
  queryKey: keys.slots,
  queryFn: async ({ client, signal }): Promise<Slot[]> => {
    const user = await client.ensureQueryData(me);
    return user.is_admin ? (await get("/api/slots", { signal })).items : [];
  },
  // memory and load change without events
  refetchInterval: REFETCH_MS,
});

/** Why ComfyUIs of a desk cannot be used. A ComfyUI that never responded has no slot. */
export const comfyuiUnreachable = queryOptions({
  queryKey: [...keys.slots, "unreachable"] as const,
  queryFn: async ({ signal }): Promise<string[]> =>
    (await get("/api/desk/unreachable-comfyui", { signal })).comfyui_unreachable,
  // a ComfyUI can stop or start without events
  refetchInterval: REFETCH_MS,
});

/** Additional details of a job on a desk; null on a server. */
export const aboutJob = (id: string) =>
  queryOptions({
    queryKey: ["job", id, "about"] as const,
    queryFn: async ({ client, signal }): Promise<AboutJob | null> => {
      if (!(await client.ensureQueryData(desk))) return null;
      try {
        return await get("/api/desk/jobs/{job_id}", { path: { job_id: id }, signal });
      } catch (thrown) {
        if (thrown instanceof Problem && thrown.status === 404) return null;
        throw thrown;
      }
    },
  });

export const job = (id: string) =>
  queryOptions({
    queryKey: keys.job(id),
    queryFn: async ({ signal }) => (await get("/api/ai-jobs/{job_id}", { path: { job_id: id }, signal })) as Job,
  });

/** The history of a job, refetched when the job changes. */
export const jobHistory = (id: string) =>
  queryOptions({
    queryKey: keys.history(id),
    queryFn: async ({ signal }) =>
      (await get("/api/ai-jobs/{job_id}/history", { path: { job_id: id }, query: { limit: 200 }, signal })).items.map(
        ({ id: number, type, data }) => ({
          id: number,
          type: type.replace("job:", ""),
          at: typeof data.at === "string" ? data.at : "",
        }),
      ),
  });

/** Saved views of the queue. Other browsers may change them. */
export const views = queryOptions({
  queryKey: keys.views,
  queryFn: async ({ signal }) => (await get("/api/views", { query: { area: "queue" }, signal })).items,
  refetchOnWindowFocus: true,
});

export const workflows = queryOptions({
  queryKey: keys.workflows,
  queryFn: ({ signal }) =>
    fetchAllPages((cursor) =>
      get("/api/workflows", { query: { limit: CHOICES_LIMIT, ...(cursor && { cursor }) }, signal }),
    ),
});

/** The workflows to filter jobs by: those of the user, and those behind effects, under the names of the effects. */
export function filterWorkflows(
  own: readonly { slug: string; name: string }[] = [],
  shared: readonly { workflow_slug: string; name: string }[] = [],
): { slug: string; name: string }[] {
  const found = new Map(own.map((each) => [each.slug, each.name]));
  for (const each of shared) {
    const others = found.get(each.workflow_slug);
    // several effects may use the same workflow
    found.set(each.workflow_slug, others === undefined ? each.name : `${others}, ${each.name}`);
  }
  return [...found].map(([slug, name]) => ({ slug, name }));
}

export function useFilterWorkflows(): { slug: string; name: string }[] {
  const { data: own } = useQuery(workflows);
  const { data: shared } = useQuery(effects);
  return useMemo(() => filterWorkflows(own, shared), [own, shared]);
}

/** The effects that visitors may see. */
export const publicEffects = queryOptions({
  queryKey: ["catalogue"] as const,
  queryFn: ({ signal }) =>
    fetchAllPages<PublicEffect>((cursor) =>
      get("/api/catalogue", { query: { limit: CHOICES_LIMIT, ...(cursor && { cursor }) }, signal }),
    ),
});

export const effects = queryOptions({
  queryKey: keys.effects,
  queryFn: ({ signal }) =>
    fetchAllPages<Effect>((cursor) =>
      get("/api/effects", { query: { limit: CHOICES_LIMIT, ...(cursor && { cursor }) }, signal }),
    ),
  // there are no events for effects
  refetchOnWindowFocus: true,
});
