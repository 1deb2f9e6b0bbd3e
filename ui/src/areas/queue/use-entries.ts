import { type InfiniteData, useInfiniteQuery, useQueryClient } from "@tanstack/react-query";
import { useCallback, useMemo } from "react";
import { type QueueAsked, queue } from "@/api/queries";
import type { Batch, Job, Page, QueueEntry } from "@/api/types";
import type { Neighbor } from "@/jobs/actions";
import { usePendingDeletes } from "@/kit/undoable-delete";
import { useLiveEvent } from "@/live";
import { moveEntry } from "./rules";

/** At most this many pages are refetched on every change. Beyond them, live events only patch the loaded entries. */
const MAX_LIVE_PAGES = 4;

type Pages = InfiniteData<Page<QueueEntry>>;

/** The entries of the queue, page by page, updated live. */
export function useEntries(asked: QueueAsked) {
  const client = useQueryClient();
  const options = useMemo(() => queue(asked), [asked]);
  const { queryKey } = options;
  const known = client.getQueryData<Pages>(queryKey);
  const isDeep = (known?.pages.length ?? 0) > MAX_LIVE_PAGES;
  const query = useInfiniteQuery({ ...options, enabled: !isDeep, placeholderData: (before) => before });

  useLiveEvent("changed", ({ jobs = [], batches = [], removed = [] }) => {
    if (!isDeep) return;
    client.setQueryData<Pages>(queryKey, (before) => before && patchPages(before, jobs, batches, removed));
  });

  /** Drops the pages below the live ones. They are fetched again when the user scrolls down. */
  const dropDeepPages = useCallback(() => {
    client.setQueryData<Pages>(queryKey, (before) =>
      before && before.pages.length > MAX_LIVE_PAGES
        ? { pages: before.pages.slice(0, MAX_LIVE_PAGES), pageParams: before.pageParams.slice(0, MAX_LIVE_PAGES) }
        : before,
    );
    void client.invalidateQueries({ queryKey: queryKey });
  }, [client, queryKey]);

  /** Moves an entry in the list at once, before the server confirms it. */
  const place = (id: string, neighbor: Neighbor) =>
    client.setQueryData<Pages>(queryKey, (found) => {
      if (!found) return found;
      const order = moveEntry(
        found.pages.flatMap((each) => each.items),
        id,
        neighbor,
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
  const pendingDeletes = usePendingDeletes();
  const entries = useMemo(() => {
    // an entry that moved while pages were fetched may be in two of them
    const found = new Map<string, QueueEntry>();
    for (const page of data?.pages ?? []) {
      for (const each of page.items) if (!found.has(each.id)) found.set(each.id, each);
    }
    return [...found.values()].filter((each) => !pendingDeletes.has(each.id));
  }, [data, pendingDeletes]);
  return { ...query, entries, isDeep, dropDeepPages, place };
}

const ENTRY_STATUS: Readonly<Record<string, string>> = { processing: "running", queued: "waiting" };

function patchPages(before: Pages, jobs: readonly Job[], batches: readonly Batch[], removed: readonly string[]): Pages {
  const byJob = new Map(jobs.map((each) => [each.id, each]));
  const byBatch = new Map(batches.map((each) => [each.id, each]));
  const change = (entry: QueueEntry): QueueEntry => {
    const job = byJob.get(entry.id);
    if (job) {
      return {
        ...entry,
        status: (ENTRY_STATUS[job.status] ?? job.status) as QueueEntry["status"],
        counts: { [job.status]: 1 } as QueueEntry["counts"],
        error: job.error,
        ended_at: job.completed_at,
        items: entry.items.map((each) => ({ ...each, status: job.status })),
      };
    }
    const batch = byBatch.get(entry.id);
    const items = entry.items.map((each) => {
      const found = byJob.get(each.id);
      return found && found.status !== each.status ? { ...each, status: found.status } : each;
    });
    if (!batch) return items.every((each, index) => each === entry.items[index]) ? entry : { ...entry, items };
    return {
      ...entry,
      items,
      counts: batch.counts,
      held: batch.held ?? null,
      expected_seconds: batch.expected_seconds,
    };
  };
  const removedIds = new Set(removed);
  const pages = before.pages.map((page) => ({
    ...page,
    items: page.items.filter((each) => !removedIds.has(each.id)).map(change),
  }));
  return { ...before, pages };
}
