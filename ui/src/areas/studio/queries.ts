// Studio queries, and what the pages derive from them.

import { infiniteQueryOptions, queryOptions, useQuery } from "@tanstack/react-query";
import { get } from "@/api/client";
import { Problem } from "@/api/problem";
import { effects, keys } from "@/api/queries";
import type { Effect, Job, Page } from "@/api/types";
import { hasEnded } from "@/jobs/job";

/** With the picture set by an administrator, if any. */
export type StudioEffect = Effect & { preview_url?: string | null };

export const effect = (slug: string) =>
  queryOptions({
    queryKey: [...keys.effects, slug] as const,
    queryFn: async ({ signal }): Promise<StudioEffect | null> => {
      try {
        return await get("/api/effects/{slug}", { path: { slug }, signal });
      } catch (thrown) {
        if (thrown instanceof Problem && thrown.status === 404) return null;
        throw thrown;
      }
    },
    // the button shows the price
    staleTime: 0,
    refetchOnWindowFocus: true,
  });

export const balance = queryOptions({
  queryKey: [...keys.wallet, "balance"] as const,
  queryFn: async ({ signal }) => {
    const { balance: left, top_up_url: url } = await get("/api/wallet", { query: { limit: 1 }, signal });
    return { balance: left, topUpUrl: url };
  },
  // events may have been missed
  refetchOnWindowFocus: true,
});

const REFETCH_MS = 4000;

type Standing = Pick<Job, "status">;

/** Not running yet. */
export const isWaiting = (job: Standing): boolean => job.status === "queued" || job.status === "paused";

/** Queue position of a job; events do not carry it. */
export const queuePosition = (job: Standing & Pick<Job, "id">) =>
  queryOptions({
    queryKey: [...keys.job(job.id), "place"] as const,
    queryFn: async ({ signal }) =>
      (await get("/api/ai-jobs/{job_id}", { path: { job_id: job.id }, signal })).waiting ?? null,
    enabled: isWaiting(job),
    refetchInterval: REFETCH_MS,
    staleTime: 0,
  });

export const STATES = ["waiting", "running", "paused", "completed", "failed", "canceled", "expired"] as const;
export type State = (typeof STATES)[number];

/** Jobs outside of batches, newest first. */
export const myVideos = (state: State | undefined, q = "", limit = 24) =>
  infiniteQueryOptions({
    queryKey: [...keys.jobs, { no_batch: true, state, q }, limit] as const,
    queryFn: async ({ pageParam, signal }): Promise<Page<Job>> =>
      (await get("/api/ai-jobs", {
        query: {
          no_batch: true,
          limit,
          ...(q && { q }),
          ...(state === "expired" ? { expired: true } : state && { status: state }),
          ...(pageParam && { cursor: pageParam }),
        },
        signal,
      })) as Page<Job>,
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
  });

/** The output existed, and expired or was deleted. */
export const isMissingOutput = (job: Pick<Job, "status" | "outputs">): boolean =>
  job.status === "completed" && job.outputs.length === 0;

export function matchesState(job: Standing & Pick<Job, "is_expired">, state: State): boolean {
  if (state === "expired") return job.is_expired === true;
  if (state === "waiting") return isWaiting(job) && job.status !== "paused";
  if (state === "running") return job.status === "processing" && !isWaiting(job);
  return job.status === state;
}

/** The effect of a job, while it is published. */
export function useEffectOf(job: Pick<Job, "effect_id"> | undefined): StudioEffect | undefined {
  const { data } = useQuery(effects);
  return data?.find((each) => each.id === job?.effect_id);
}

// `KSampler (3): …`, and exception names
const INSIDE = /^\S+ \(\S+\): |Error\b|Exception\b|Traceback/;
export const isTechnical = (error: string): boolean => INSIDE.test(error);

/** Null if unknown. */
export function processingSeconds(job: Pick<Job, "status" | "started_at" | "completed_at">): number | null {
  if (!hasEnded(job) || !job.started_at || !job.completed_at) return null;
  return Math.max(0, (Date.parse(job.completed_at) - Date.parse(job.started_at)) / 1000);
}

/** Index of the step: uploaded, queued, processing, done. */
export const currentStep = (job: Standing): number => (job.status === "completed" ? 3 : isWaiting(job) ? 1 : 2);

/** A stable hue for the placeholder of an effect. */
export function placeholderHue(slug: string): number {
  let found = 2166136261;
  for (const each of slug) found = Math.imul(found ^ (each.codePointAt(0) ?? 0), 16777619) >>> 0;
  return found % 360;
}

const FILM = /\.(mp4|webm|mov|m4v)$/i;
export const isVideoUrl = (url: string): boolean => FILM.test(new URL(url, "http://here").pathname);
