// What the events of the server change in what was fetched. Rows that are known are changed in their place; what must be
// looked for (a new job, one that belongs elsewhere in a list now) is fetched anew, and not more often than SETTLE_MS.

import type { InfiniteData, QueryClient } from "@tanstack/react-query";
import { type Counts, keys, LIVE } from "@/api/queries";
import { marked } from "@/api/tabs";
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

export class Applying {
  private readonly waiting = new Set<string>();
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly client: QueryClient) {}

  changed({ jobs = [], batches = [], removed = [] }: Changed): void {
    for (const each of jobs) this.set(keys.job(each.id), each);
    for (const each of batches) this.set(keys.batch(each.id), each);
    this.happened(new Set(jobs.map((each) => each.id)));
    for (const id of removed) this.client.removeQueries({ queryKey: keys.job(id), exact: true });
    const isSettled = this.replace(keys.jobs, jobs, new Set(removed)) && this.replace(keys.batches, batches, new Set());
    if (!isSettled) this.soon("jobs", "batches");
    // what starts and what ends moves tokens
    this.soon("queue", "lanes", "wallet");
    if (removed.length || jobs.some((each) => each.status === "completed")) this.soon("gallery");
    if (removed.length) this.soon("counts");
  }

  progress({ jobs }: Progress): void {
    const byId = new Map(jobs.map((each) => [each.id, each]));
    for (const each of jobs) {
      const key = keys.job(each.id);
      const updatedAt = this.client.getQueryState(key)?.dataUpdatedAt ?? Date.now();
      // its URLs are as old as they were
      this.client.setQueryData<Job>(key, (before) => before && { ...before, ...moved(each) }, { updatedAt });
    }
    for (const [key, data] of this.client.getQueriesData<Paged>({ queryKey: keys.jobs })) {
      const changed = mapRows(data, (row) => {
        const found = byId.get(row.id);
        return found ? { ...row, ...moved(found) } : row;
      });
      if (changed !== data) {
        this.client.setQueryData(key, changed, {
          updatedAt: this.client.getQueryState(key)?.dataUpdatedAt ?? Date.now(),
        });
      }
    }
  }

  /** The stream names what runs and waits: their numbers are shown at once, and their order may be another. */
  queue({ counts }: Pick<Counts, "counts">): void {
    const found: Counts = { counts, waiting: counts.queued ?? 0, running: counts.processing ?? 0 };
    this.set(keys.counts, found);
    this.soon("queue", "lanes");
  }

  /** Stars, rejects, notes and collections, whichever browser changed them. */
  gallery({ outputs, is_all }: Gallery): void {
    marked(outputs, is_all);
  }

  /** Tokens came that are of no job. */
  wallet(): void {
    this.soon("wallet");
  }

  /** Events may have been missed: everything that is looked at is fetched anew, the rest when it is looked at. */
  reset(): void {
    void this.client.invalidateQueries({ predicate: (query) => LIVE.includes(String(query.queryKey[0])) });
    marked([], true);
  }

  resetSoon(): void {
    this.soon(...LIVE);
  }

  stop(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.waiting.clear();
  }

  /** An answer that is still on its way is older than the event, and must not replace it. */
  private set(queryKey: readonly string[], data: unknown): void {
    void this.client.cancelQueries({ queryKey, exact: true });
    this.client.setQueryData(queryKey, data);
  }

  /** Whether all lists show what changed: none has to be looked for. */
  private replace(key: readonly string[], rows: Row[], removed: ReadonlySet<string>): boolean {
    if (!rows.length && !removed.size) return true;
    const byId = new Map(rows.map((each) => [each.id, each]));
    // a list that is on its way may be older than this
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

  /** What happened to a job that somebody looks at has grown. */
  private happened(ids: ReadonlySet<string>): void {
    void this.client.invalidateQueries({
      predicate: ({ queryKey: [word, id, part] }) => word === "job" && part === "history" && ids.has(String(id)),
    });
  }

  private soon(...words: string[]): void {
    for (const each of words) this.waiting.add(each);
    this.timer ??= setTimeout(() => {
      this.timer = undefined;
      const due = new Set(this.waiting);
      this.waiting.clear();
      void this.client.invalidateQueries({ predicate: (query) => due.has(String(query.queryKey[0])) });
    }, SETTLE_MS);
  }
}

/** What is told to move has begun. */
const moved = ({ progress }: Progress["jobs"][number]) => ({ progress, is_only_fetched: false });

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

// a page in which nothing changed stays the very same, so that nothing is drawn anew for it
function mapPage(page: Page<Row>, change: (row: Row) => Row | null): Page<Row> {
  const items = page.items.map(change).filter((each) => each !== null);
  const isSame = items.length === page.items.length && items.every((each, index) => each === page.items[index]);
  return isSame ? page : { ...page, items };
}
