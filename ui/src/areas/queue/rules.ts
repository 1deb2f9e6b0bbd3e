// What the queue shows and offers, by what is known of a batch or job. Nothing here asks or changes anything.

import type { QueueAsked } from "@/api/queries";
import type { QueueEntry, SavedView } from "@/api/types";
import { common, duration } from "@/texts/common";
import { queue as texts } from "@/texts/queue";

export type Counts = Readonly<Record<string, number>>;
export type Tone = "running" | "good" | "bad" | "warn" | "quiet";

const ACTIVE = ["running", "waiting", "paused"];
export const STATUSES = ["running", "waiting", "paused", "completed", "failed", "canceled"] as const;
/** A status of the list, as jobs call it. */
export const JOB_STATUS: Readonly<Record<string, string>> = { running: "processing", waiting: "queued" };
export const jobStatus = (status: string): string => JOB_STATUS[status] ?? status;

export const isActive = (unit: Pick<QueueEntry, "status">): boolean => ACTIVE.includes(unit.status);
const count = (counts: Counts, ...statuses: string[]) => statuses.reduce((sum, each) => sum + (counts[each] ?? 0), 0);
/** What was canceled is not done. */
export const doneOf = (counts: Counts): number => count(counts, "completed", "failed");
export const activeOf = (counts: Counts): number => count(counts, "queued", "processing", "paused");

export type Line =
  | { kind: "now"; key: string }
  | { kind: "heading"; key: string; text: string }
  | { kind: "unit"; key: string; unit: QueueEntry };

/** Units under their headings: what is next, then what has ended, by day. */
export function linesOf(units: readonly QueueEntry[], sort: string | undefined, today = new Date()): Line[] {
  const lines: Line[] = [];
  let heading = "";
  for (const unit of units) {
    const text =
      (!sort || sort === "queue") && isActive(unit) ? texts.next : dayOf(sort ? unit.created_at : endOf(unit), today);
    if (text !== heading) lines.push({ kind: "heading", key: `heading ${text}`, text });
    heading = text;
    lines.push({ kind: "unit", key: unit.id, unit });
  }
  return lines;
}

const endOf = (unit: QueueEntry) => unit.ended_at ?? unit.created_at;

function dayOf(at: string, today: Date): string {
  const day = new Date(at);
  const midnight = (date: Date) => new Date(date.getFullYear(), date.getMonth(), date.getDate()).getTime();
  const days = Math.round((midnight(today) - midnight(day)) / 86_400_000);
  if (days <= 0) return texts.today;
  if (days === 1) return texts.yesterday;
  return texts.day(day);
}

/** How much of it is done: what only runs, and what was canceled, fills no bar. */
export function partsOf(counts: Counts, total: number): { status: string; part: number }[] {
  return ["completed", "failed"]
    .map((status) => ({ status, part: total ? (counts[status] ?? 0) / total : 0 }))
    .filter((each) => each.part > 0);
}

export interface Summary {
  main: string;
  sub: string;
  tone: Tone;
}

/** Why something waits that will not run before somebody does something about it. */
const BLOCKED: readonly string[] = ["missing", "no_worker", "no_comfyui", "blocked", "pool_down"];
export const isBlocked = (reason: string | null | undefined): boolean => BLOCKED.includes(reason ?? "");

/** What stands at the end of a line. A batch of which one item failed did not fail. */
export function summaryOf(unit: QueueEntry): Summary {
  const { counts, total, status } = unit;
  const failed = count(counts, "failed");
  const done = texts.doneOf(doneOf(counts), total);
  const left = unit.expected_seconds;
  switch (status) {
    case "running":
      return {
        main: left === null ? (common.status.running ?? "") : left < 1 ? texts.almost : texts.left(duration(left)),
        sub: failed ? texts.failed(failed) : unit.is_batch ? done : "",
        tone: "running",
      };
    case "waiting":
      if (isBlocked(unit.waiting_reason)) return { main: texts.blocked, sub: unit.waiting_text ?? "", tone: "warn" };
      return {
        main:
          unit.starts_in_seconds === null
            ? (common.status.waiting ?? "")
            : unit.starts_in_seconds < 1
              ? texts.startsNow
              : texts.startsIn(duration(unit.starts_in_seconds)),
        sub: unit.waiting_text ?? (unit.is_batch && doneOf(counts) ? done : ""),
        tone: "quiet",
      };
    case "paused":
      return { main: common.status.paused ?? "", sub: unit.held ?? (unit.is_batch ? done : ""), tone: "warn" };
    case "failed":
      if (!unit.is_batch || failed === total) {
        return { main: common.status.failed ?? "", sub: unit.error ?? "", tone: "bad" };
      }
      return { main: texts.failed(failed), sub: texts.made(count(counts, "completed"), total), tone: "warn" };
    case "canceled":
      return {
        main: common.status.canceled ?? "",
        sub: unit.is_batch ? texts.made(count(counts, "completed"), total) : "",
        tone: "quiet",
      };
    default:
      return { main: common.status[status] ?? status, sub: "", tone: "good" };
  }
}

export type VerbName =
  | "pause"
  | "pauseNow"
  | "resume"
  | "next"
  | "up"
  | "down"
  | "retry"
  | "retrySeeds"
  | "retryCanceled"
  | "again"
  | "againSeeds"
  | "cancel"
  | "delete";

export interface Subject {
  id: string;
  isBatch: boolean;
  status: string;
  counts: Counts;
  hasSeed?: boolean;
  isHeld?: boolean;
  /** Of a job that was retried already: another one does that. */
  isRetried?: boolean;
  /** Of what waits: what a worker has already, and nobody can move any more. */
  fetched?: number;
  priority?: number;
}

export const subjectOf = (unit: QueueEntry): Subject => ({
  id: unit.id,
  isBatch: unit.is_batch,
  status: unit.status,
  counts: unit.counts,
  isHeld: unit.held !== null,
  isRetried: unit.retried_as !== null,
  fetched: unit.fetched,
  priority: unit.priority,
});

export const PRIORITIES = { high: 10, normal: 0, low: -10 } as const;

/** What waits, or will again, can be given another priority. */
export const canPrioritise = ({ status, counts, isBatch }: Subject): boolean =>
  isBatch ? count(counts, "queued", "paused") > 0 : ["waiting", "queued", "paused"].includes(status);

/** The verbs that make sense now, the likeliest first. */
export function verbsOf(subject: Subject): VerbName[] {
  return subject.isBatch ? verbsOfBatch(subject) : verbsOfJob(subject);
}

const MOVES: VerbName[] = ["next", "up", "down"];

function verbsOfJob({ status, hasSeed = false, isRetried = false, fetched = 0 }: Subject): VerbName[] {
  switch (isRetried ? "completed" : status) {
    case "waiting":
    case "queued":
      return ["pause", ...(fetched ? [] : MOVES), "cancel"];
    case "running":
    case "processing":
      return ["pauseNow", "cancel"];
    case "paused":
      return ["resume", ...MOVES, "cancel"];
    case "failed":
    case "canceled":
      return ["retry", ...(hasSeed ? (["retrySeeds"] as const) : []), "delete"];
    default:
      return ["again", ...(hasSeed ? (["againSeeds"] as const) : []), "delete"];
  }
}

function verbsOfBatch({ counts, hasSeed = false, fetched = 0 }: Subject): VerbName[] {
  const found: VerbName[] = [];
  const active = activeOf(counts);
  if (counts.paused) found.push("resume");
  if (count(counts, "queued", "processing")) found.push("pause");
  if (counts.processing) found.push("pauseNow");
  if (count(counts, "queued", "paused") > fetched) found.push(...MOVES);
  if (counts.failed) found.push("retry", ...(hasSeed ? (["retrySeeds"] as const) : []));
  // while others go on, what was canceled was not wanted
  if (counts.canceled && !active) found.push("retryCanceled");
  if (active) found.push("cancel");
  else found.push("again", ...(hasSeed ? (["againSeeds"] as const) : []), "delete");
  return found;
}

/** What a unit is called in the address: a batch is told from a job. */
export const selectionOf = (unit: Pick<QueueEntry, "id" | "is_batch">): string =>
  unit.is_batch ? `b-${unit.id}` : unit.id;

export const ALL = "all";

export interface BulkAmong {
  ids?: string[];
  filter?: { status?: string; batch_id?: string; workflow?: string; q?: string; in_queue?: boolean };
  /** When they were counted: what came to fit the filter since is left out. */
  as_of?: string;
}

const MOST_IDS = 1000;

/** The calls that do something with all that is selected: one for jobs by their ids, one for each batch. */
export function amongOf(selected: readonly string[], asked: QueueAsked): BulkAmong[] {
  if (selected.includes(ALL)) return [{ filter: filterOf(asked) }];
  const jobs = selected.filter((each) => !each.startsWith("b-"));
  const batches = selected.filter((each) => each.startsWith("b-")).map((each) => each.slice(2));
  const found: BulkAmong[] = [];
  for (let from = 0; from < jobs.length; from += MOST_IDS) found.push({ ids: jobs.slice(from, from + MOST_IDS) });
  // of a batch that stands here for some of its jobs, only these are meant
  return [...found, ...batches.map((each) => ({ filter: { ...filterOf(asked), batch_id: each } }))];
}

export function filterOf({ status, workflow, q }: QueueAsked): NonNullable<BulkAmong["filter"]> {
  return { in_queue: true, ...(status && { status }), ...(workflow && { workflow }), ...(q && { q }) };
}

/** Whether a unit that is selected is so as a whole: under a filter, only what it means is. */
export const selectedPart = (unit: Pick<QueueEntry, "matched" | "total">, isSelected: boolean): boolean | "some" =>
  isSelected && unit.matched < unit.total ? "some" : isSelected;

/** How many jobs are selected, and in how many batches; null where some of them are not in the list. */
export function jobsIn(
  units: readonly QueueEntry[],
  selected: readonly string[],
  hasMore: boolean,
): { jobs: number; batches: number } | null {
  const isAll = selected.includes(ALL);
  const chosen = units.filter((each) => isAll || selected.includes(selectionOf(each)));
  if (isAll ? hasMore : chosen.length < selected.length) return null;
  const jobs = chosen.reduce((sum, each) => sum + each.matched, 0);
  return { jobs, batches: chosen.filter((each) => each.is_batch).length };
}

/** A place before or after another unit. */
export interface Beside {
  other: string;
  isAfter: boolean;
}

/** Units in the order after one was put beside another. */
export function moved(units: readonly QueueEntry[], id: string, { other, isAfter }: Beside): QueueEntry[] {
  const unit = units.find((each) => each.id === id);
  if (!unit || id === other) return [...units];
  const rest = units.filter((each) => each.id !== id);
  const at = rest.findIndex((each) => each.id === other);
  const place = isAfter ? at + 1 : at;
  return at < 0 ? [...units] : [...rest.slice(0, place), unit, ...rest.slice(place)];
}

/** What can be put elsewhere: all that still waits, in whole or in part, where it is shown in the queue's order. */
export const canMove = (unit: QueueEntry, sort?: string): boolean =>
  (!sort || sort === "queue") && count(unit.counts, "queued", "paused") > unit.fetched;

/** Which jobs stop when the whole queue does. */
export const pausedBy = (mode: "after" | "now"): string[] => (mode === "now" ? ["waiting", "running"] : ["waiting"]);

export type View = SavedView;

const TILE_GAP = 3;

/** How many of so many tiles are shown in a strip of this width, with room to say how many more there are. */
export function tilesThatFit(count: number, width: number, tile: number, rows: number): number {
  const all = Math.floor((width + TILE_GAP) / (tile + TILE_GAP)) * rows;
  return count <= all ? count : Math.max(1, all - 2);
}

/** What people look for comes back with a view; what is open or selected does not. */
export const VIEWED = ["status", "workflow", "q", "sort"] as const;

export const isSameView = (view: Pick<View, "search">, search: Readonly<Record<string, string>>): boolean =>
  VIEWED.every((each) => (view.search[each] ?? "") === (search[each] ?? ""));
