import type { AboutJob, Job } from "@/api/types";
import { kindOf, type MediaFile } from "@/kit/Media";

const MAX_FILES = 24;

/** The outputs of a job, and other files of its run that can be displayed. */
export function displayableFiles(job: Job, about?: AboutJob | null): { file: MediaFile; name: string }[] {
  const outputs = job.outputs.map((each) => ({ file: each as MediaFile, name: each.filename }));
  const others = (about?.files ?? [])
    .filter((each) => !each.is_output && each.url && kindOf(each.mime_type) !== "other")
    .slice(0, MAX_FILES)
    .map((each) => ({ file: { url: each.url as string, mime_type: each.mime_type }, name: each.name }));
  return [...outputs, ...others];
}

/** The selected file. `number` is set if it is an output that can be the input of another job; it starts at 1. */
export function selectedFile(
  job: Job,
  about: AboutJob | null | undefined,
  at: number,
): { url: string; name: string; number: number | null } | null {
  const files = displayableFiles(job, about);
  const index = Math.min(at, files.length - 1);
  const found = files[index];
  if (!found) return null;
  const canBeInput = index < job.outputs.length && ["image", "video", "audio"].includes(kindOf(found.file.mime_type));
  return { url: found.file.url, name: found.name, number: canBeInput ? index + 1 : null };
}
