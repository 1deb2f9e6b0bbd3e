// Applies server events to the query cache. Known rows are changed in place. Lists that may have a new row or a new order
// are refetched, at most once per SETTLE_MS.

import type { InfiniteData, QueryClient } from "@tanstack/react-query";
import { Problem } from "@/api/problem";
import { countsOf, keys, LIVE } from "@/api/queries";
import { notifyMarked } from "@/api/tabs";
import type { Batch, Job, Page } from "@/api/types";

export interface Changed {
  jobs?: Job[];
  batches?: Batch[];
  removed?: string[];
}

export interface Progress {
  jobs: { id: string; progress: Job["progress"]; expected_seconds?: number | null }[];
}

export interface Gallery {
  outputs: string[];
  is_all: boolean;
}

type Row = { id: string };
type Paged = Page<Row> | InfiniteData<Page<Row>>;

const SETTLE_MS = 500;

export class CacheUpdater {
  private readonly stale = new Set<string>();
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly client: QueryClient) {}

  changed({ jobs = [], batches = [], removed = [] }: Changed): void {
    for (const each of jobs) {
      // one event about many jobs has only the first output of each
      const isWhole = each.outputs.length >= (each.output_count ?? 0);
      if (isWhole) this.set(keys.job(each.id), each);
      else void this.client.invalidateQueries({ queryKey: keys.job(each.id), exact: true });
    }
    for (const each of batches) this.set(keys.batch(each.id), each);
    this.refetchHistories(new Set(jobs.map((each) => each.id)));
    for (const id of removed) this.client.removeQueries({ queryKey: keys.job(id), exact: true });
    const isSettled = this.replace(keys.jobs, jobs, new Set(removed)) && this.replace(keys.batches, batches, new Set());
    if (!isSettled) this.refetchSoon("jobs", "batches");
    // a job that starts or ends moves tokens
    this.refetchSoon("queue", "slots", "wallet");
    if (removed.length || jobs.some((each) => each.status === "completed")) this.refetchSoon("gallery");
    if (removed.length) this.refetchSoon("counts");
  }

  progress({ jobs }: Progress): void {
    const byId = new Map(jobs.map((each) => [each.id, each]));
    for (const each of jobs) {
      const key = keys.job(each.id);
      const updatedAt = this.client.getQueryState(key)?.dataUpdatedAt ?? Date.now();
      // keep the old timestamp: the file URLs were not renewed
      this.client.setQueryData<Job>(key, (before) => before && withProgress(before, each), { updatedAt });
    }
    for (const [key, data] of this.client.getQueriesData<Paged>({ queryKey: keys.jobs })) {
      const changed = mapRows(data, (row) => {
        const found = byId.get(row.id);
        return found ? withProgress(row, found) : row;
      });
      if (changed !== data) {
        this.client.setQueryData(key, changed, {
          updatedAt: this.client.getQueryState(key)?.dataUpdatedAt ?? Date.now(),
        });
      }
    }
  }

  /** Shows the new counts at once. The order of the queue may have changed, too. */
  queue(queue: Parameters<typeof countsOf>[0]): void {
    this.set(keys.counts, countsOf(queue));
    // a prefetched job that starts changes the counts of its batch
    this.refetchSoon("queue", "slots", "batch");
  }

  /** Stars, rejects, notes and collections, changed in any browser. */
  gallery({ outputs, is_all }: Gallery): void {
    notifyMarked(outputs, is_all);
  }

  /** The balance changed without a job. */
  wallet(): void {
    this.refetchSoon("wallet");
  }

  /** Events may have been missed: refetches active queries now and the others when they are used. */
  reset(): void {
    void this.client.invalidateQueries({ predicate: (query) => LIVE.includes(String(query.queryKey[0])) });
    this.refetchFailed();
    notifyMarked([], true);
  }

  /** Refetches data that could not be fetched while the server was down, including data without events. */
  refetchFailed(): void {
    void this.client.invalidateQueries({
      predicate: ({ state: { error } }) => error instanceof Problem && error.isDown,
    });
  }

  resetSoon(): void {
    this.refetchSoon(...LIVE);
  }

  stop(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.stale.clear();
  }

  /** Cancels a pending fetch: its response is older than the event. */
  private set(queryKey: readonly string[], data: unknown): void {
    void this.client.cancelQueries({ queryKey, exact: true });
    this.client.setQueryData(queryKey, data);
  }

  /** Replaces rows in all lists. Returns whether that is enough, so that no list has to be refetched. */
  private replace(key: readonly string[], rows: Row[], removed: ReadonlySet<string>): boolean {
    if (!rows.length && !removed.size) return true;
    const byId = new Map(rows.map((each) => [each.id, each]));
    // a pending list may be older than the event
    let isSettled = this.client.isFetching({ queryKey: key }) === 0;
    for (const [, data] of this.client.getQueriesData<Paged>({ queryKey: key })) {
      const known = new Map(rowsOf(data).map((each) => [each.id, each]));
      isSettled &&= rows.every((each) => statusOf(known.get(each.id)) === statusOf(each));
    }
    this.client.setQueriesData<Paged>({ queryKey: key }, (before) =>
      mapRows(before, (row) => (removed.has(row.id) ? null : (byId.get(row.id) ?? row))),
    );
    return isSettled;
  }

  private refetchHistories(ids: ReadonlySet<string>): void {
    void this.client.invalidateQueries({
      predicate: ({ queryKey: [key, id, part] }) => key === "job" && part === "history" && ids.has(String(id)),
    });
  }

  private refetchSoon(...keysToRefetch: string[]): void {
    for (const each of keysToRefetch) this.stale.add(each);
    this.timer ??= setTimeout(() => {
      this.timer = undefined;
      const due = new Set(this.stale);
      this.stale.clear();
      void this.client.invalidateQueries({ predicate: (query) => due.has(String(query.queryKey[0])) });
    }, SETTLE_MS);
  }
}

/** A job with progress has started. */
const withProgress = <T extends object>(row: T, { progress }: Progress["jobs"][number]): T => ({
  ...row,
  progress,
  is_prefetched: false,
  // a late report does not restart a job that has ended
  ...("status" in row && row.status === "queued" && { status: "processing" }),
});

const statusOf = (row: Row | undefined): unknown => row && ("status" in row ? row.status : "known");

function rowsOf(data: Paged | undefined): Row[] {
  if (!data) return [];
  return "pages" in data ? data.pages.flatMap((each) => each.items) : (data.items ?? []);
}

function mapRows(data: Paged | undefined, change: (row: Row) => Row | null): Paged | undefined {
  if (!data) return data;
  if ("pages" in data) return { ...data, pages: data.pages.map((each) => mapPage(each, change)) };
  return data.items ? mapPage(data, change) : data;
}

// returns the same object if no row changed, so that no component renders again
function mapPage(page: Page<Row>, change: (row: Row) => Row | null): Page<Row> {
  const items = page.items.map(change).filter((each) => each !== null);
  const isSame = items.length === page.items.length && items.every((each, index) => each === page.items[index]);
  return isSame ? page : { ...page, items };
}
