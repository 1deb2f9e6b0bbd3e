// State, progress and problems of workers.

import { worker as texts, workers as words } from "@/texts/console-workers";
import { stageOf } from "../queries/fleets";
import type { Worker, WorkerDetails, WorkerJob, WorkersQuery } from "../queries/workers";
import type { Tone } from "../shared/panels";

/** In display order. */
export const STATES = ["busy", "idle", "no_comfyui", "draining", "offline", "revoked"] as const;

const TONES: Readonly<Record<string, Tone>> = {
  busy: "good",
  idle: "muted",
  no_comfyui: "bad",
  draining: "info",
  offline: "bad",
  revoked: "warn",
  pending: "warn",
  blocked: "warn",
};

export const stateTone = (state: string): Tone => TONES[state] ?? "muted";
export const workerName = (worker: Pick<Worker, "display_name" | "worker_id">): string =>
  worker.display_name || worker.worker_id;

interface Searched {
  status?: string | undefined;
  fleet?: string | undefined;
  stage?: string | undefined;
  q?: string | undefined;
  sort?: string | undefined;
}

const SORTS = ["name", "state", "fleet", "gpu", "version", "seen"];

/** Maps search parameters to the request. A fleet is `home` or `production/home`. */
export function parseWorkersQuery({ status, fleet, stage, q, sort }: Searched): WorkersQuery {
  const [slug, its] = (fleet ?? "").split("/").reverse();
  const inStage = stageOf(stage || its);
  const state = STATES.find((each) => each === status);
  return {
    ...(state && { state }),
    ...(slug && { fleet: slug }),
    ...(inStage && { stage: inStage }),
    ...(q?.trim() && { search: q.trim() }),
    ...(sort && SORTS.includes(sort.replace("-", "")) && { sort }),
  };
}

/** From 0 to 1; null if unknown. */
export function progressPart(job: Pick<WorkerJob, "progress">): number | null {
  const value = progressOf(job).value;
  return typeof value === "number" ? Math.min(1, Math.max(0, value)) : null;
}

export const progressOf = ({ progress }: Pick<WorkerJob, "progress">): Readonly<Record<string, unknown>> =>
  typeof progress === "object" && progress !== null ? (progress as Record<string, unknown>) : {};

/** Running jobs before prefetched ones. */
export const runningFirst = (jobs: readonly WorkerJob[]): WorkerJob[] =>
  [...jobs].sort((one, other) => (progressPart(other) ?? -1) - (progressPart(one) ?? -1));

export const isPrefetched = (job: WorkerJob): boolean => job.is_prefetch && progressPart(job) === null;

/** Progress in percent; estimated progress is marked. */
export function percentOf(job: Pick<WorkerJob, "progress">): string | null {
  const part = progressPart(job);
  if (part === null) return null;
  return progressOf(job).is_estimated === true ? words.aboutPercent(part) : words.percent(part);
}

/** Current node and step. */
export function describeProgress(job: WorkerJob): string {
  const { node_title, node, step, steps, phase, is_estimated } = progressOf(job);
  if (isPrefetched(job)) return texts.fetched;
  const part = [node_title, node, phase].find((each) => typeof each === "string");
  const count = typeof steps === "number" && steps > 1 ? texts.step(Number(step ?? 0), steps) : "";
  return [part, count, is_estimated === true && words.estimated].filter(Boolean).join(" · ");
}

/** Problems of a worker, most severe first. */
export function workerBlocks(worker: WorkerDetails, now: number): { tone: Tone; text: string }[] {
  const words = texts.blocks;
  const found: { tone: Tone; text: string }[] = [];
  const silent = (now - Date.parse(worker.last_seen_at)) / 1000;
  if (!worker.is_approved) found.push({ tone: "warn", text: words.revoked });
  if (worker.state === "offline") found.push({ tone: "bad", text: words.offline(silent) });
  if (worker.is_draining) found.push({ tone: "info", text: words.draining(worker.leases) });
  for (const each of new Set(
    worker.gpus.map((gpu) => gpu.unavailable_reason).filter((reason) => typeof reason === "string"),
  )) {
    found.push({ tone: "bad", text: each });
  }
  if (worker.workflow_slugs.length === 0) found.push({ tone: "warn", text: words.unmapped });
  for (const each of worker.blocks) {
    const until = each.blocked_until && Date.parse(each.blocked_until) > now ? each.blocked_until : null;
    if (!until) continue;
    const text = words.workflow(workflowName(each), each.failure_count, until, each.reason ?? null);
    found.push({ tone: "warn", text: each.is_out_of_memory ? `${text} ${words.outOfMemory}` : text });
  }
  for (const each of worker.missing_requirements) {
    found.push({
      tone: "warn",
      text: words.missing(workflowName(each), listNames([...each.node_types, ...each.models])),
    });
  }
  return found;
}

/** Slug, or the start of the hash. */
export const workflowName = (of: { workflow_slug?: string | null; workflow_hash: string }): string =>
  of.workflow_slug ?? of.workflow_hash.slice(0, 8);

/** Short reason why a worker is idle. */
export function workerNote(worker: Worker, now: number): { text: string; tone?: Tone } {
  if (worker.state === "offline") {
    return { text: words.offlineFor((now - Date.parse(worker.last_seen_at)) / 1000), tone: "bad" };
  }
  if (!worker.is_approved) return { text: words.shut, tone: "warn" };
  const reason = worker.gpus.find((each) => each.unavailable_reason)?.unavailable_reason;
  if (reason) return { text: reason, tone: "bad" };
  if (worker.is_draining && worker.leases === 0) return { text: words.drained };
  if (worker.blocked > 0) return { text: words.blocked(worker.blocked), tone: "warn" };
  return { text: "" };
}

/** `a, b, c +2` */
export function listNames(names: readonly string[], most = 3): string {
  const more = names.length - most;
  return names.slice(0, most).join(", ") + (more > 0 ? ` ${words.more(more)}` : "");
}
