import { queryOptions } from "@tanstack/react-query";
import { get } from "@/api/client";
import { consoleKeys } from "../shared/live";
import { REFETCH_MS, type Schemas } from "./paging";

export type Overview = Schemas["Overview"];

export const overview = (range: "hour" | "day" | "week") =>
  queryOptions({
    queryKey: [...consoleKeys.samples, range] as const,
    queryFn: ({ signal }) => get("/api/admin/overview", { query: { range }, signal }),
    // current values change between samples
    refetchInterval: REFETCH_MS,
    placeholderData: (before) => before,
  });

export type Outage = Schemas["OutageView"];

/** The server answers from memory, even while its database is down. */
export const outages = queryOptions({
  queryKey: ["console", "outages"] as const,
  queryFn: ({ signal }) => get("/api/admin/outages", { signal }),
  refetchInterval: REFETCH_MS,
});

export const deliveryCounts = queryOptions({
  queryKey: ["console", "webhooks", "counts"] as const,
  queryFn: ({ signal }) => get("/api/admin/webhooks/counts", { signal }),
  // events may get lost
  refetchInterval: 3 * REFETCH_MS,
});
