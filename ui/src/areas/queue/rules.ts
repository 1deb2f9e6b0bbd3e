// The texts, actions and order of batches and jobs in the queue. Pure functions.

import type { QueueAsked } from "@/api/queries";
import type { QueueEntry, SavedView } from "@/api/types";
import { type ActionTarget, type BulkSelection, type Counts, countOf, isBlocked, type Neighbor } from "@/jobs/actions";
import { selectionsOfIds } from "@/jobs/bulk";
import { common, duration } from "@/texts/common";
import { queue as texts } from "@/texts/queue";

export type Tone = "running" | "good" | "bad" | "warn" | "quiet";

const ACTIVE = ["running", "waiting", "paused"];
export const STATUSES = ["running", "waiting", "paused", "completed", "failed", "canceled"] as const;
const JOB_STATUS: Readonly<Record<string, string>> = { running: "processing", waiting: "queued" };
/** The job status for a status of the queue. */
export const jobStatus = (status: string): string => JOB_STATUS[status] ?? status;

export const isActive = (entry: Pick<QueueEntry, "status">): boolean => ACTIVE.includes(entry.status);
/** Canceled jobs do not count as done. */
export const doneOf = (counts: Counts): number => countOf(counts, "completed", "failed");

export type Line =
  | { kind: "now"; key: string }
  | { kind: "heading"; key: string; text: string }
  | { kind: "entry"; key: string; entry: QueueEntry };

/** Entries under headings: running ones, waiting ones, then finished ones by day. `above` is the heading of the cards
 * over the list, under which running entries need no heading of their own. */
export function linesOf(
  entries: readonly QueueEntry[],
  sort: string | undefined,
  { above = "", today = new Date() } = {},
): Line[] {
  const lines: Line[] = [];
  let heading = above;
  for (const entry of entries) {
    const text =
      (!sort || sort === "queue") && isActive(entry)
        ? entry.status === "running"
          ? texts.now
          : texts.next
        : dayOf(sort ? entry.created_at : endOf(entry), today);
    if (text !== heading) lines.push({ kind: "heading", key: `heading ${text}`, text });
    heading = text;
    lines.push({ kind: "entry", key: entry.id, entry });
  }
  return lines;
}

const endOf = (entry: QueueEntry) => entry.ended_at ?? entry.created_at;

function dayOf(at: string, today: Date): string {
  const day = new Date(at);
  const midnight = (date: Date) => new Date(date.getFullYear(), date.getMonth(), date.getDate()).getTime();
  const days = Math.round((midnight(today) - midnight(day)) / 86_400_000);
  if (days <= 0) return texts.today;
  if (days === 1) return texts.yesterday;
  return texts.day(day);
}

/** The finished parts of the progress bar. Running and canceled jobs do not fill it. */
export function progressParts(counts: Counts, total: number): { status: string; part: number }[] {
  return ["completed", "failed"]
    .map((status) => ({ status, part: total ? (counts[status] ?? 0) / total : 0 }))
    .filter((each) => each.part > 0);
}

export interface Summary {
  main: string;
  sub: string;
  tone: Tone;
}

/** The text at the end of a row. A batch with some failed items shows a warning, not a failure. */
export function summaryOf(entry: QueueEntry): Summary {
  const { counts, total, status } = entry;
  const failed = countOf(counts, "failed");
  const done = texts.doneOf(doneOf(counts), total);
  const left = entry.expected_seconds;
  switch (status) {
    case "running":
      return {
        main: left === null ? (common.status.running ?? "") : left < 1 ? texts.almost : texts.left(duration(left)),
        sub: failed ? texts.because(texts.failed(failed), entry.error) : entry.is_batch ? done : "",
        tone: "running",
      };
    case "waiting":
      if (entry.waiting_reason === "queue_paused") {
        return { main: texts.queuePaused, sub: entry.is_batch ? done : "", tone: "warn" };
      }
      if (isBlocked(entry.waiting_reason)) return { main: texts.blocked, sub: entry.waiting_text ?? "", tone: "warn" };
      return waitingSummary(entry, entry.is_batch && doneOf(counts) ? done : "");
    case "paused":
      return { main: common.status.paused ?? "", sub: entry.held ?? (entry.is_batch ? done : ""), tone: "warn" };
    case "failed":
      if (!entry.is_batch || failed === total) {
        return { main: common.status.failed ?? "", sub: entry.error ?? "", tone: "bad" };
      }
      return {
        main: texts.failed(failed),
        sub: texts.because(texts.made(countOf(counts, "completed"), total), entry.error),
        tone: "warn",
      };
    case "canceled":
      return {
        main: common.status.canceled ?? "",
        sub: entry.is_batch ? texts.made(countOf(counts, "completed"), total) : "",
        tone: "quiet",
      };
    default:
      return {
        main: common.status[status] ?? status,
        sub: entry.took_seconds == null ? "" : texts.took(duration(entry.took_seconds)),
        tone: "good",
      };
  }
}

function waitingSummary(entry: QueueEntry, done: string): Summary {
  const { starts_in_seconds: seconds, waiting_reason: reason, waiting_text: text } = entry;
  const waiting = { sub: text ?? done, tone: "quiet" as const };
  if (seconds === null) return { ...waiting, main: common.status.waiting ?? "" };
  if (seconds < 1) return { ...waiting, main: texts.startsNow };
  // the text of a job in line says the same
  return { ...waiting, main: texts.startsIn(duration(seconds)), sub: reason === "busy" ? done : waiting.sub };
}

export const targetOfEntry = (entry: QueueEntry): ActionTarget => ({
  id: entry.id,
  isBatch: entry.is_batch,
  status: entry.status,
  counts: entry.counts,
  isHeld: entry.held !== null,
  isRetried: entry.retried_as !== null,
  fetched: entry.fetched,
  priority: entry.priority,
});

/** The id of an entry in the URL. Batches have a prefix. */
export const selectionId = (entry: Pick<QueueEntry, "id" | "is_batch">): string =>
  entry.is_batch ? `b-${entry.id}` : entry.id;

export const ALL = "all";

/** The bulk calls for a selection: jobs by id, and one filter per batch. */
export function bulkSelections(selected: readonly string[], asked: QueueAsked): BulkSelection[] {
  if (selected.includes(ALL)) return [{ filter: bulkFilter(asked) }];
  const jobs = selected.filter((each) => !each.startsWith("b-"));
  const batches = selected.filter((each) => each.startsWith("b-")).map((each) => each.slice(2));
  // under a filter, a batch stands only for its matching jobs
  return [...selectionsOfIds(jobs), ...batches.map((each) => ({ filter: { ...bulkFilter(asked), batch_id: each } }))];
}

export function bulkFilter({ status, workflow, q }: QueueAsked): NonNullable<BulkSelection["filter"]> {
  return { in_queue: true, ...(status && { status }), ...(workflow && { workflow }), ...(q && { q }) };
}

/** The state of the checkbox: under a filter, a batch is only partly selected. */
export const checkboxState = (entry: Pick<QueueEntry, "matched" | "total">, isSelected: boolean): boolean | "some" =>
  isSelected && entry.matched < entry.total ? "some" : isSelected;

/** The number of selected jobs and batches; null if some of them are not loaded. */
export function countSelected(
  entries: readonly QueueEntry[],
  selected: readonly string[],
  hasMore: boolean,
): { jobs: number; batches: number } | null {
  const isAll = selected.includes(ALL);
  const chosen = entries.filter((each) => isAll || selected.includes(selectionId(each)));
  if (isAll ? hasMore : chosen.length < selected.length) return null;
  const jobs = chosen.reduce((sum, each) => sum + each.matched, 0);
  return { jobs, batches: chosen.filter((each) => each.is_batch).length };
}

/** The entries after moving one next to another. */
export function moveEntry(entries: readonly QueueEntry[], id: string, { other, isAfter }: Neighbor): QueueEntry[] {
  const entry = entries.find((each) => each.id === id);
  if (!entry || id === other) return [...entries];
  const rest = entries.filter((each) => each.id !== id);
  const at = rest.findIndex((each) => each.id === other);
  const index = isAfter ? at + 1 : at;
  return at < 0 ? [...entries] : [...rest.slice(0, index), entry, ...rest.slice(index)];
}

/** Entries with waiting jobs can be moved while the list shows the order of the queue. */
export const canMove = (entry: QueueEntry, sort?: string): boolean =>
  (!sort || sort === "queue") && countOf(entry.counts, "queued", "paused") > entry.fetched;

const TILE_GAP = 3;

/** The number of tiles that fit into a strip, leaving space for the count of the rest. */
export function tilesThatFit(count: number, width: number, tile: number, rows: number): number {
  const all = Math.floor((width + TILE_GAP) / (tile + TILE_GAP)) * rows;
  return count <= all ? count : Math.max(1, all - 2);
}

/** A saved view restores the filters, not the open or selected entries. */
const VIEW_FIELDS = ["status", "workflow", "q", "sort"] as const;

export const isSameView = (view: Pick<SavedView, "search">, search: Readonly<Record<string, string>>): boolean =>
  VIEW_FIELDS.every((each) => (view.search[each] ?? "") === (search[each] ?? ""));
