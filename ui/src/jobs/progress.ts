import type { Job } from "@/api/types";
import { duration } from "@/texts/common";
import { queue } from "@/texts/queue";

export interface ProgressDescription {
  /** From 0 to 1; null while unknown. */
  value: number | null;
  text: string;
  /** Estimated from the duration of the last such job, because the worker reports no progress. */
  isEstimated?: true;
}

/** Whether a run of the job was lost, and its next run has reported nothing yet. */
export function isStartingAgain(job: Pick<Job, "progress">): boolean {
  return job.progress?.phase === "starting again";
}

/** A job with fewer steps done is not shown as almost done, even if its usual time is over. */
const LAST_STEPS = 0.8;

/** The estimated remaining time of a job of which this part is done, if known. */
export function leftText(seconds: number, part: number | null): string {
  if (seconds >= 1) return queue.left(duration(seconds));
  return part !== null && part < LAST_STEPS ? queue.longer : queue.almost;
}

/** The progress of a running job, as its worker reports it. */
export function describeProgress(progress: Job["progress"], leftSeconds?: number | null): ProgressDescription {
  const given = progress ?? {};
  const value = typeof given.value === "number" ? Math.min(1, Math.max(0, given.value)) : null;
  const parts: string[] = [];
  if (typeof given.node === "string" && given.node) parts.push(given.node);
  const [step, steps] = [Number(given.step ?? 0), typeof given.steps === "number" ? given.steps : 0];
  if (steps) parts.push(queue.step(step, steps));
  if (!parts.length && typeof given.phase === "string" && given.phase) parts.push(given.phase);
  const isEstimated = given.is_estimated === true && value !== null;
  if (isEstimated) parts.push(queue.estimated(value));
  if (typeof leftSeconds === "number") {
    parts.push(leftText(leftSeconds, steps ? step / steps : null));
  }
  const text = parts.join(" · ") || queue.starting;
  return isEstimated ? { value, text, isEstimated } : { value, text };
}
