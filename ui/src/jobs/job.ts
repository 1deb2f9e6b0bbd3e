import type { Job } from "@/api/types";
import { job as texts } from "@/texts/job";

const ENDED = ["completed", "failed", "canceled"];
export const hasEnded = (job: Pick<Job, "status">): boolean => ENDED.includes(job.status);

/** The label of a job, or its prompt, or the name of its workflow. */
export const jobTitle = (job: Pick<Job, "label" | "prompt" | "workflow_name">): string =>
  job.label || job.prompt || job.workflow_name || texts.title;
