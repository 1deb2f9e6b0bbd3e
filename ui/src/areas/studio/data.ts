// What the studio asks the server for, and what it makes of it.

import { infiniteQueryOptions, queryOptions, useQuery } from "@tanstack/react-query";
import { get } from "@/api/client";
import { Problem } from "@/api/problem";
import { effects, keys } from "@/api/queries";
import type { Effect, Job, Page } from "@/api/types";
import { hasEnded } from "@/areas/job/rules";

/** With the picture that an administrator gave it, where the server knows one. */
export type Offered = Effect & { preview_url?: string | null };

export const effect = (slug: string) =>
  queryOptions({
    queryKey: [...keys.effects, slug] as const,
    queryFn: async ({ signal }): Promise<Offered | null> => {
      try {
        return await get("/api/effects/{slug}", { path: { slug }, signal });
      } catch (thrown) {
        if (thrown instanceof Problem && thrown.status === 404) return null;
        throw thrown;
      }
    },
    // its price is on the button
    staleTime: 0,
    refetchOnWindowFocus: true,
  });

/** What can be spent. */
export const balance = queryOptions({
  queryKey: [...keys.wallet, "balance"] as const,
  queryFn: async ({ signal }) => {
    const { balance: left, top_up_url: url } = await get("/api/wallet", { query: { limit: 1 }, signal });
    return { balance: left, topUpUrl: url };
  },
  // the stream may have been away
  refetchOnWindowFocus: true,
});

const REFETCH_MS = 4000;

type Standing = Pick<Job, "status" | "is_only_fetched">;

/** Whether it has yet to begin; a worker that runs another one may have it already. */
export const waits = (job: Standing): boolean =>
  job.status === "queued" || job.status === "paused" || (job.status === "processing" && job.is_only_fetched === true);

/** Where a job stands in line: told of one that is asked for, and not with events. */
export const placeOf = (job: Standing & Pick<Job, "id">) =>
  queryOptions({
    queryKey: [...keys.job(job.id), "place"] as const,
    queryFn: async ({ signal }) =>
      (await get("/api/ai-jobs/{job_id}", { path: { job_id: job.id }, signal })).waiting ?? null,
    enabled: waits(job),
    // others come and go before it
    refetchInterval: REFETCH_MS,
    staleTime: 0,
  });

/** How what somebody made can be chosen. */
export const STATES = ["waiting", "running", "paused", "completed", "failed", "canceled", "expired"] as const;
export type State = (typeof STATES)[number];

/** What somebody made one by one, newest first. */
export const myVideos = (state: State | undefined, limit = 24) =>
  infiniteQueryOptions({
    queryKey: [...keys.jobs, { no_batch: true, state }, limit] as const,
    queryFn: async ({ pageParam, signal }): Promise<Page<Job>> =>
      (await get("/api/ai-jobs", {
        query: {
          no_batch: true,
          limit,
          ...(state === "expired" ? { expired: true } : state && { status: state }),
          ...(pageParam && { cursor: pageParam }),
        } as never,
        signal,
      })) as Page<Job>,
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
  });

/** Whether what it made was there, and is gone: it was kept for as long as it is, or somebody deleted it. */
export const isGone = (job: Pick<Job, "status" | "outputs">): boolean =>
  job.status === "completed" && job.outputs.length === 0;

/** Whether a job is among those of a state. */
export function fits(job: Standing & Pick<Job, "is_expired">, state: State): boolean {
  if (state === "expired") return job.is_expired === true;
  if (state === "waiting") return waits(job) && job.status !== "paused";
  if (state === "running") return job.status === "processing" && !waits(job);
  return job.status === state;
}

/** The effect that a job was made with, while it is offered. */
export function useEffectOf(job: Pick<Job, "effect_id"> | undefined): Offered | undefined {
  const { data } = useQuery(effects);
  return data?.find((each) => each.id === job?.effect_id);
}

// `KSampler (3): …`, and what programs call their errors
const INSIDE = /^\S+ \(\S+\): |Error\b|Exception\b|Traceback/;
/** Whether it is said in the words of programs, and not of people. */
export const isTechnical = (error: string): boolean => INSIDE.test(error);

/** How many seconds it took; null where that is not known. */
export function tookSeconds(job: Pick<Job, "status" | "started_at" | "completed_at">): number | null {
  if (!hasEnded(job) || !job.started_at || !job.completed_at) return null;
  return Math.max(0, (Date.parse(job.completed_at) - Date.parse(job.started_at)) / 1000);
}

/** Which of the four steps it is at: uploaded, in line, processing, done. */
export const stepOf = (job: Standing): number => (job.status === "completed" ? 3 : waits(job) ? 1 : 2);

/** A number from 0 to 359 for a name: its placeholder always has the same colours, and others have others. */
export function hueOf(slug: string): number {
  let found = 2166136261;
  for (const each of slug) found = Math.imul(found ^ (each.codePointAt(0) ?? 0), 16777619) >>> 0;
  return found % 360;
}

const FILM = /\.(mp4|webm|mov|m4v)$/i;
export const isFilm = (url: string): boolean => FILM.test(new URL(url, "http://here").pathname);
