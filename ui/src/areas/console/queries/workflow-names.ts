import { queryOptions } from "@tanstack/react-query";
import { get } from "@/api/client";
import { fetchAllPages } from "@/api/paging";
import { PAGE, type Schemas } from "./paging";

export const workflowNames = queryOptions({
  queryKey: ["console", "workflows", "names"] as const,
  queryFn: ({ signal }) =>
    fetchAllPages<Schemas["WorkflowSummary"]>((cursor) =>
      get("/api/admin/workflows", { query: { ...PAGE, ...(cursor !== null && { cursor }) }, signal }),
    ),
});
