import { type InfiniteData, useInfiniteQuery, useQueryClient } from "@tanstack/react-query";
import { useCallback, useMemo } from "react";
import { type QueueAsked, queue } from "@/api/queries";
import type { Batch, Job, Page, QueueEntry } from "@/api/types";
import { useLeaving } from "@/app/leaving";
import { useLiveEvent } from "@/live";
import { type Beside, moved } from "./rules";

/** So many pages are fetched anew whenever something changes. Who looks further down sees changes of what is shown. */
const MOST_LIVE = 4;

type Pages = InfiniteData<Page<QueueEntry>>;

/** The units of the queue, page by page, live. */
export function useUnits(asked: QueueAsked) {
  const client = useQueryClient();
  const options = queue(asked);
  const key = JSON.stringify(options.queryKey);
  const known = client.getQueryData<Pages>(options.queryKey);
  const isDeep = (known?.pages.length ?? 0) > MOST_LIVE;
  const query = useInfiniteQuery({ ...options, enabled: !isDeep, placeholderData: (before) => before });

  useLiveEvent("changed", ({ jobs = [], batches = [], removed = [] }) => {
    if (!isDeep) return;
    client.setQueryData<Pages>(options.queryKey, (before) => before && patched(before, jobs, batches, removed));
  });

  /** Back at the top, the rest is forgotten: it is fetched anew when one goes there. */
  // biome-ignore lint/correctness/useExhaustiveDependencies: `key` is what they are made of
  const atTop = useCallback(() => {
    client.setQueryData<Pages>(options.queryKey, (before) =>
      before && before.pages.length > MOST_LIVE
        ? { pages: before.pages.slice(0, MOST_LIVE), pageParams: before.pageParams.slice(0, MOST_LIVE) }
        : before,
    );
    void client.invalidateQueries({ queryKey: options.queryKey });
  }, [client, key]);

  /** Show it there at once; the server's word follows. */
  const place = (id: string, beside: Beside) =>
    client.setQueryData<Pages>(options.queryKey, (found) => {
      if (!found) return found;
      const order = moved(
        found.pages.flatMap((each) => each.items),
        id,
        beside,
      );
      let from = 0;
      const pages = found.pages.map((each) => {
        const items = order.slice(from, from + each.items.length);
        from += each.items.length;
        return { ...each, items };
      });
      return { ...found, pages };
    });

  const { data } = query;
  const leaving = useLeaving();
  const units = useMemo(() => {
    // what moved between two pages while they were fetched is in both
    const found = new Map<string, QueueEntry>();
    for (const page of data?.pages ?? []) {
      for (const each of page.items) if (!found.has(each.id)) found.set(each.id, each);
    }
    return [...found.values()].filter((each) => !leaving.has(each.id));
  }, [data, leaving]);
  return { ...query, units, isDeep, atTop, place };
}

const UNIT_STATUS: Readonly<Record<string, string>> = { processing: "running", queued: "waiting" };

function patched(before: Pages, jobs: readonly Job[], batches: readonly Batch[], removed: readonly string[]): Pages {
  const byJob = new Map(jobs.map((each) => [each.id, each]));
  const byBatch = new Map(batches.map((each) => [each.id, each]));
  const change = (unit: QueueEntry): QueueEntry => {
    const job = byJob.get(unit.id);
    if (job) {
      return {
        ...unit,
        status: (UNIT_STATUS[job.status] ?? job.status) as QueueEntry["status"],
        counts: { [job.status]: 1 } as QueueEntry["counts"],
        error: job.error,
        ended_at: job.completed_at,
        items: unit.items.map((each) => ({ ...each, status: job.status })),
      };
    }
    const batch = byBatch.get(unit.id);
    const items = unit.items.map((each) => {
      const found = byJob.get(each.id);
      return found && found.status !== each.status ? { ...each, status: found.status } : each;
    });
    if (!batch) return items.every((each, index) => each === unit.items[index]) ? unit : { ...unit, items };
    return { ...unit, items, counts: batch.counts, held: batch.held ?? null, expected_seconds: batch.expected_seconds };
  };
  const gone = new Set(removed);
  const pages = before.pages.map((page) => ({
    ...page,
    items: page.items.filter((each) => !gone.has(each.id)).map(change),
  }));
  return { ...before, pages };
}
