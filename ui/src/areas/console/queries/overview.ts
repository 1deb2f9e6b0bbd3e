import { queryOptions } from "@tanstack/react-query";
import { get } from "@/api/client";
import { consoleKeys } from "../shared/live";
import { REFETCH_MS, type Schemas } from "./paging";

export type Overview = Schemas["Overview"];

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
