import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { get } from "@/api/client";
import type { Page } from "@/api/types";
import { consoleKeys } from "../shared/live";
import type { Stage } from "./fleets";
import { REFETCH_MS, type Schemas } from "./paging";

export type Dispatch = Schemas["DispatchSummary"];
export type DispatchStatus = Schemas["DispatchStatus"];

export type Attempt = Schemas["LeaseAttempt"];

const ENDED: readonly string[] = ["completed", "failed", "canceled"];
export const hasEnded = (status: string): boolean => ENDED.includes(status);

export interface DispatchesQuery {
  status?: DispatchStatus;
  stage?: Stage;
  workflow?: string;
  tenant?: string;
  worker?: string;
  effect?: string;
  user?: string;
  from?: string;
  to?: string;
  search?: string;
}

export const dispatches = (asked: DispatchesQuery) =>
  infiniteQueryOptions({
    queryKey: [...consoleKeys.dispatches, asked] as const,
    queryFn: async ({ pageParam, signal }): Promise<Page<Dispatch>> =>
      get("/api/admin/dispatches", {
        query: { ...asked, limit: 100, ...(pageParam && { cursor: Number(pageParam) }) },
        signal,
      }),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
    // progress changes without events; poll slower with more pages
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
      if (state.data && hasEnded(state.data.status)) return false;
      return state.data?.status === "leased" ? REFETCH_MS / 4 : REFETCH_MS;
    },
  });

/** Waiting reason; polled because the queue position changes. */
export const waitingOf = (id: string) =>
  queryOptions({
    queryKey: [...consoleKeys.dispatch(id), "waiting"] as const,
    queryFn: ({ signal }) =>
      get("/api/admin/dispatches/{dispatch_id}/waiting", { path: { dispatch_id: Number(id) }, signal }),
    refetchInterval: REFETCH_MS,
  });

export type SupportJob = Schemas["SupportJob"];

/** The job as its customer sees it. */
export const supportOf = (id: string) =>
  queryOptions({
    queryKey: [...consoleKeys.dispatch(id), "job"] as const,
    queryFn: ({ signal }) =>
      get("/api/admin/dispatches/{dispatch_id}/job", { path: { dispatch_id: Number(id) }, signal }),
  });

/** Attempts and audit entries. */
export const historyOf = (id: string) =>
  infiniteQueryOptions({
    queryKey: [...consoleKeys.dispatch(id), "audit"] as const,
    queryFn: ({ pageParam, signal }) =>
      get("/api/admin/dispatches/{dispatch_id}/audit", {
        path: { dispatch_id: Number(id) },
        query: { limit: 50, ...(pageParam && { cursor: Number(pageParam) }) },
        signal,
      }),
    initialPageParam: "",
    getNextPageParam: (page) => page.entries.next_cursor,
  });
