import { call, get } from "@/api/client";
import type { BulkDone } from "@/api/types";
import type { BulkSelection } from "./actions";

/** The server accepts at most this many ids per call. */
const MAX_IDS = 1000;

export interface CountedSelection {
  matched: number;
  selection: BulkSelection;
}

/** Counts the jobs of each selection, and pins the selection to that moment: jobs that match later are left out. */
export async function countJobs(
  selections: readonly BulkSelection[],
  signal?: AbortSignal,
): Promise<CountedSelection[]> {
  return Promise.all(
    selections.map(async (each) => {
      const body = { action: "cancel", ...each, dry_run: true };
      const { data } = await call<BulkDone>("POST", "/api/ai-jobs/bulk", body, signal);
      return { matched: data.matched, selection: data.as_of ? { ...each, as_of: data.as_of } : each };
    }),
  );
}

/** Splits ids into selections that the server accepts. */
export function selectionsOfIds(ids: readonly string[]): BulkSelection[] {
  const found: BulkSelection[] = [];
  for (let from = 0; from < ids.length; from += MAX_IDS) found.push({ ids: ids.slice(from, from + MAX_IDS) });
  return found;
}

/** Ids of the canceled jobs of a batch, in the order of its items. */
export async function canceledJobs(batchId: string): Promise<string[]> {
  const ids: string[] = [];
  let cursor: string | null | undefined;
  do {
    const page = await get("/api/ai-jobs", {
      query: { batch_id: batchId, status: "canceled", sort: "oldest", limit: 200, ...(cursor && { cursor }) },
    });
    ids.push(...page.items.map((each) => each.id));
    cursor = page.next_cursor;
  } while (cursor);
  return ids;
}
