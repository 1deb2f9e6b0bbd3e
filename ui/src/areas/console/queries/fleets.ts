import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { get } from "@/api/client";
import { fetchAllPages } from "@/api/paging";
import type { Page } from "@/api/types";
import { consoleKeys } from "../shared/live";
import { PAGE, REFETCH_MS, type Schemas } from "./paging";

export type Fleet = Schemas["Fleet"];

export type Scaling = Schemas["FleetAutoscalingStatus"];

export type Decision = Schemas["Decision"];

export type EndedMachine = Schemas["MachineInHistory"];

export type Usage = Schemas["Usage"];

export type Stage = Schemas["Stage"];
export const STAGES: readonly Stage[] = ["production", "staging"];
export const stageOf = (text: string | undefined): Stage | undefined => STAGES.find((each) => each === text);

export const fleets = queryOptions({
  queryKey: consoleKeys.fleets,
  queryFn: ({ signal }) =>
    fetchAllPages<Fleet>((cursor) =>
      get("/api/admin/fleets", { query: { ...PAGE, ...(cursor !== null && { cursor: Number(cursor) }) }, signal }),
    ),
});

const named = (stage: string, slug: string) => ({ stage: stage as Stage, slug });

export const fleet = (stage: string, slug: string) =>
  queryOptions({
    queryKey: consoleKeys.fleet(stage, slug),
    queryFn: ({ signal }) => get("/api/admin/fleets/{stage}/{slug}", { path: named(stage, slug), signal }),
  });

/** Machine states change without events. */
export const scaling = (stage: string, slug: string) =>
  queryOptions({
    queryKey: [...consoleKeys.fleet(stage, slug), "scaling"] as const,
    queryFn: ({ signal }) => get("/api/admin/fleets/{stage}/{slug}/autoscaling", { path: named(stage, slug), signal }),
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
        query: { limit: 50, ...(pageParam && { cursor: Number(pageParam) }) },
        signal,
      }),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
  });

export const endedMachines = (stage: string, slug: string) =>
  infiniteQueryOptions({
    queryKey: [...consoleKeys.fleet(stage, slug), "ended"] as const,
    queryFn: async ({ pageParam, signal }): Promise<Page<EndedMachine>> =>
      get("/api/admin/fleets/{stage}/{slug}/machines", {
        path: named(stage, slug),
        query: { limit: 50, ...(pageParam && { cursor: pageParam }) },
        signal,
      }),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
  });

/** Days in UTC, both included. */
export const usage = (by: "fleet" | "workflow" | "tenant", from: string, to: string) =>
  queryOptions({
    queryKey: ["console", "usage", by, from, to] as const,
    queryFn: ({ signal }) => get("/api/admin/usage", { query: { by, from, to }, signal }),
  });

export const joinInstructions = (stage: string, slug: string) =>
  queryOptions({
    queryKey: ["console", "join", stage, slug] as const,
    queryFn: ({ signal }) => get("/api/admin/fleets/{stage}/{slug}/join-command", { path: named(stage, slug), signal }),
    // contains a secret: do not cache
    gcTime: 0,
  });
