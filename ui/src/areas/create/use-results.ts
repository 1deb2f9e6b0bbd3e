// The jobs of a workflow and their outputs, updated live.

import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { useEffect, useMemo } from "react";
import { jobs, queue } from "@/api/queries";
import type { Job } from "@/api/types";
import type { Item } from "@/areas/gallery/item";
import { items } from "@/areas/gallery/item-store";
import { newest } from "@/areas/gallery/queries";
import { useMatchCount } from "@/jobs/use-match-count";
import { usePendingDeletes } from "@/kit/undoable-delete";
import { mergeResults, type Result } from "./result-list";

const MAX_RUNNING = 4;
const MAX_FAILED = 5;
/** Batches and single jobs, active ones first. The next job to run is among them. */
const MAX_ENTRIES = 20;

export interface Results {
  isLoaded: boolean;
  running: readonly Job[];
  alsoRunning: number;
  waiting: number;
  /** Why the next job waits, unless it only waits for its turn. */
  waitingText: string | null;
  results: readonly Result[];
  /** Ids of the shown outputs. */
  order: readonly string[];
  /** The number of all outputs of the workflow. */
  total: number;
}

export function useResults(workflow: string): Results {
  const query = useMemo(() => ({ workflow }), [workflow]);
  const { data: page } = useQuery(newest(query));
  const { data: active } = useInfiniteQuery(jobs({ workflow, status: "processing" }));
  const { data: failed } = useInfiniteQuery(jobs({ workflow, status: "failed" }, MAX_FAILED));
  const { data: queued } = useInfiniteQuery(queue({ workflow }, MAX_ENTRIES));
  const waiting = useMatchCount({ in_queue: true, status: "waiting", workflow }) ?? 0;
  const leaving = usePendingDeletes();
  useEffect(() => {
    if (page) items.put(page.items as Item[]);
  }, [page]);
  return useMemo(() => {
    const made = ((page?.items ?? []) as Item[]).filter((each) => !leaving.has(each.id));
    const results = mergeResults(made, failed?.pages[0]?.items ?? []);
    // a prefetched job still waits
    const running = (active?.pages[0]?.items ?? []).filter(
      (each) => each.status === "processing" && !each.is_prefetched,
    );
    const entries = queued?.pages[0]?.items ?? [];
    return {
      isLoaded: page !== undefined,
      running: running.slice(0, MAX_RUNNING),
      alsoRunning: Math.max(0, running.length - MAX_RUNNING),
      waiting,
      waitingText: running.length ? null : (entries.find((each) => each.waiting_text)?.waiting_text ?? null),
      results,
      order: results.flatMap((each) => (each.kind === "output" ? [each.item.id] : [])),
      total: page?.total ?? 0,
    };
  }, [page, active, failed, queued, waiting, leaving]);
}
