// What is fetched, by key. What live events change is found by the first word of its key: keep to these.

import { infiniteQueryOptions, type Query, QueryClient, queryOptions, useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { get } from "./client";
import { CHOICES_LIMIT, QUEUE_LIMIT } from "./prefetch";
import { Problem } from "./problem";
import type { AboutJob, Batch, Effect, Job, Page, QueueEntry, QueueItem, Slot } from "./types";

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

/** First words of what changes by itself, and is fetched anew where events may have been missed. */
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

/** First words of what has URLs of files, which work for a while only. */
const WITH_URLS: readonly string[] = ["job", "jobs", "queue", "gallery", "effects", "workflows"];

const MINUTE = 60_000;
const REFETCH_MS = 5000;
/** Unless the server says otherwise. */
const URL_SECONDS = 900;
/** Posters may have half of their time behind them when they are told. */
const FRESH_PART = 0.4;

/** In how many milliseconds what was fetched must be fetched anew, so that its URLs go on working; false for never. */
function renewsIn(client: QueryClient, { queryKey, state }: Pick<Query, "queryKey" | "state">): number | false {
  if (!WITH_URLS.includes(String(queryKey[0])) || !state.dataUpdatedAt) return false;
  const seconds = client.getQueryData(entry.queryKey)?.url_seconds ?? URL_SECONDS;
  // it may have been fetched in vain meanwhile
  return Math.max(REFETCH_MS, state.dataUpdatedAt + seconds * 1000 * FRESH_PART - Date.now());
}

/** Fetch anew what is looked at and has URLs: one of them works no longer. */
export function renewUrls(client: QueryClient): void {
  const predicate = ({ queryKey: [word] }: Pick<Query, "queryKey">) => WITH_URLS.includes(String(word));
  void client.invalidateQueries({ predicate, refetchType: "active" }, { cancelRefetch: false });
}

export function makeQueryClient(): QueryClient {
  const client: QueryClient = new QueryClient({
    defaultOptions: {
      queries: {
        // live events say when something changed
        staleTime: MINUTE,
        gcTime: 10 * MINUTE,
        refetchInterval: (query) => renewsIn(client, query),
        // nothing is renewed while nobody looks
        refetchOnWindowFocus: (query) => renewsIn(client, query) === REFETCH_MS && "always",
        // the server asks to come again with 503, and is away with 0
        retry: (count, thrown) => count < 2 && (!(thrown instanceof Problem) || [0, 503].includes(thrown.status)),
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

/** What this is, and how one gets in; null on a desk that is not open to who asks. */
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

/** What this desk is made of; null on a server, which is none. */
export const desk = queryOptions({
  queryKey: keys.desk,
  queryFn: async ({ client, signal }) => {
    const found = await client.ensureQueryData(entry);
    return found?.is_desk === false ? null : get("/api/desk", { signal });
  },
  staleTime: 5 * MINUTE,
  // a ComfyUI may come at any time, and then the examples run on it
  refetchInterval: ({ state }) => (state.data?.trying_out === "examples" ? REFETCH_MS : false),
});

/** How many jobs are in which status. */
export interface Counts {
  counts: Record<string, number>;
  waiting: number;
  running: number;
}

export const counts = queryOptions({
  queryKey: keys.counts,
  queryFn: async ({ signal }): Promise<Counts> => {
    const now = await get("/api/queue/counts", { signal });
    return { counts: now.counts, waiting: now.counts.queued ?? 0, running: now.counts.processing ?? 0 };
  },
});

export interface JobsAsked {
  status?: string;
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

/** Batches and single jobs: what runs, what waits in its order, what has ended. */
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

/** All items of a batch, each as its newest try. */
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

/** Where jobs run; none for those who may not see it. */
export const slots = queryOptions({
  queryKey: keys.slots,
  queryFn: async ({ client, signal }): Promise<Slot[]> => {
    const who = await client.ensureQueryData(me);
    return who.is_admin ? (await get("/api/slots", { signal })).items : [];
  },
  // memory and load change though no job does
  refetchInterval: REFETCH_MS,
});

/** Of a desk: why each ComfyUI that cannot be used is away. One that never answered has no slot. */
export const comfyuiAway = queryOptions({
  queryKey: [...keys.slots, "away"] as const,
  queryFn: async ({ signal }): Promise<string[]> => (await get("/api/desk/away", { signal })).comfyui_away,
  // it goes and comes though no job changes
  refetchInterval: REFETCH_MS,
});

/** What a desk knows of a job beside the job itself; null on a server. */
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

/** What happened to it so far; fetched anew whenever the job changes. */
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

/** Views of the queue that are kept under a name; other browsers may change them. */
export const views = queryOptions({
  queryKey: keys.views,
  queryFn: async ({ signal }) => (await get("/api/views", { query: { area: "queue" }, signal })).items,
  refetchOnWindowFocus: true,
});

export const workflows = queryOptions({
  queryKey: keys.workflows,
  queryFn: async ({ signal }) => (await get("/api/workflows", { query: { limit: CHOICES_LIMIT }, signal })).items,
});

/** All by which jobs can be filtered: one's own workflows, and those behind effects, by the names of these. */
export function filterable(
  own: readonly { slug: string; name: string }[] = [],
  shared: readonly { workflow_slug: string; name: string }[] = [],
): { slug: string; name: string }[] {
  const found = new Map(own.map((each) => [each.slug, each.name]));
  for (const each of shared) {
    const others = found.get(each.workflow_slug);
    // one workflow may be behind several effects
    found.set(each.workflow_slug, others === undefined ? each.name : `${others}, ${each.name}`);
  }
  return [...found].map(([slug, name]) => ({ slug, name }));
}

export function useFilterable(): { slug: string; name: string }[] {
  const { data: own } = useQuery(workflows);
  const { data: shared } = useQuery(effects);
  return useMemo(() => filterable(own, shared), [own, shared]);
}

export const effects = queryOptions({
  queryKey: keys.effects,
  queryFn: async ({ signal }) => {
    const found: Effect[] = [];
    for (let cursor: string | null | undefined = ""; cursor !== null && cursor !== undefined; ) {
      const query = { limit: CHOICES_LIMIT, ...(cursor && { cursor }) };
      const page: Page<Effect> = await get("/api/effects", { query, signal });
      found.push(...page.items);
      cursor = page.next_cursor;
    }
    return found;
  },
  // an administrator changes them, and no event tells of it
  refetchOnWindowFocus: true,
});
