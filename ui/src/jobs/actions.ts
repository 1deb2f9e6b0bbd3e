// The actions that a job or batch offers, by its status.

import type { Job } from "@/api/types";

export type Counts = Readonly<Record<string, number>>;

export const countOf = (counts: Counts, ...statuses: string[]): number =>
  statuses.reduce((sum, each) => sum + (counts[each] ?? 0), 0);
export const activeOf = (counts: Counts): number => countOf(counts, "queued", "processing", "paused");

/** Reasons to wait that need the user or an operator to act. */
const BLOCKED: readonly string[] = ["missing", "no_worker", "no_comfyui", "blocked", "pool_down"];
export const isBlocked = (reason: string | null | undefined): boolean => BLOCKED.includes(reason ?? "");

export type JobAction =
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

export interface ActionTarget {
  id: string;
  isBatch: boolean;
  status: string;
  counts: Counts;
  hasSeed?: boolean;
  isHeld?: boolean;
  /** The job was already retried by another one. */
  isRetried?: boolean;
  /** Waiting jobs that a worker has already fetched. They cannot be moved. */
  fetched?: number;
  priority?: number;
}

export const targetOfJob = (job: Job): ActionTarget => ({
  id: job.id,
  isBatch: false,
  status: job.status,
  counts: { [job.status]: 1 },
  hasSeed: job.seed !== null,
  isRetried: Boolean(job.retried_as),
  priority: job.priority,
  fetched: job.is_prefetched ? 1 : 0,
});

export const PRIORITIES = { high: 10, normal: 0, low: -10 } as const;

/** Only waiting and paused jobs can change their priority. */
export const canPrioritize = ({ status, counts, isBatch }: ActionTarget): boolean =>
  isBatch ? countOf(counts, "queued", "paused") > 0 : ["waiting", "queued", "paused"].includes(status);

/** The available actions, the most likely first. */
export function actionsFor(target: ActionTarget): JobAction[] {
  return target.isBatch ? batchActions(target) : jobActions(target);
}

const MOVES: JobAction[] = ["next", "up", "down"];

function jobActions({ status, hasSeed = false, isRetried = false, fetched = 0 }: ActionTarget): JobAction[] {
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

function batchActions({ counts, hasSeed = false, fetched = 0 }: ActionTarget): JobAction[] {
  const found: JobAction[] = [];
  const active = activeOf(counts);
  if (counts.paused) found.push("resume");
  if (countOf(counts, "queued", "processing")) found.push("pause");
  if (counts.processing) found.push("pauseNow");
  if (countOf(counts, "queued", "paused") > fetched) found.push(...MOVES);
  if (counts.failed) found.push("retry", ...(hasSeed ? (["retrySeeds"] as const) : []));
  // while other jobs are active, a retry of the canceled ones is not offered
  if (counts.canceled && !active) found.push("retryCanceled");
  if (active) found.push("cancel");
  else found.push("again", ...(hasSeed ? (["againSeeds"] as const) : []), "delete");
  return found;
}

export interface BulkSelection {
  ids?: string[];
  filter?: { status?: string; batch_id?: string; workflow?: string; q?: string; in_queue?: boolean };
  /** When the jobs were counted. Jobs that matched the filter later are left out. */
  as_of?: string;
}

/** A position before or after another entry of the queue. */
export interface Neighbor {
  other: string;
  isAfter: boolean;
}
