import type { Job } from "@/api/types";
import { kindOf } from "@/kit/Media";

/** The selected output. `number` is set if it can be the input of another job. */
export function selectedFile(job: Job, at: number): { url: string; name: string; number: number | null } | null {
  const found = job.outputs[Math.min(at, job.outputs.length - 1)];
  if (!found) return null;
  const canBeInput = ["image", "video", "audio"].includes(kindOf(found.mime_type));
  return { url: found.url, name: found.filename, number: canBeInput ? (found.number ?? 1) : null };
}
