import { useQuery } from "@tanstack/react-query";
import { keys } from "@/api/queries";
import type { BulkSelection } from "./actions";
import { countJobs } from "./bulk";

/** The number of jobs of the queue that match the filter. */
export function useMatchCount(filter: NonNullable<BulkSelection["filter"]>, isEnabled = true): number | undefined {
  const { data } = useQuery({
    queryKey: [...keys.queue, "count", filter],
    queryFn: async ({ signal }) => (await countJobs([{ filter }], signal))[0]?.matched,
    enabled: isEnabled,
  });
  return data;
}
