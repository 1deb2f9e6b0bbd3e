import { useQueryClient } from "@tanstack/react-query";
import { useEffect } from "react";
import { batchItems } from "@/api/queries";
import type { Job } from "@/api/types";

/** Finds the ids of the previous and next item in the batch of a job. */
export function useBatchNeighbors(job: Job): (by: 1 | -1) => string | undefined {
  const client = useQueryClient();
  const { batch_id: batchId } = job;
  useEffect(() => {
    if (batchId) void client.prefetchInfiniteQuery(batchItems(batchId));
  }, [client, batchId]);
  return (by) => {
    const found = batchId ? client.getQueryData(batchItems(batchId).queryKey) : undefined;
    const items = found?.pages.flatMap((each) => each.items) ?? [];
    const at = items.findIndex((each) => each.item_no === job.item_no);
    return at < 0 ? undefined : items[at + by]?.id;
  };
}
