// What is said of a job, by what is known of it.

import type { Whole } from "@/api/json";
import type { AboutJob, InputValue, Job } from "@/api/types";
import { kindOf, type MediaFile } from "@/kit/Media";
import { duration } from "@/texts/common";
import { job as texts } from "@/texts/job";
import { queue } from "@/texts/queue";

const ENDED = ["completed", "failed", "canceled"];
export const hasEnded = (job: Pick<Job, "status">): boolean => ENDED.includes(job.status);

const MOST_SHOWN = 24;

/** The output that the queue keeps, and what else the run made, as far as it can be looked at. */
export function filesOf(job: Job, about?: AboutJob | null): { file: MediaFile; name: string }[] {
  const outputs = job.outputs.map((each) => ({ file: each as MediaFile, name: each.filename }));
  const others = (about?.files ?? [])
    .filter((each) => !each.is_output && each.url && kindOf(each.mime_type) !== "other")
    .slice(0, MOST_SHOWN)
    .map((each) => ({ file: { url: each.url as string, mime_type: each.mime_type }, name: each.name }));
  return [...outputs, ...others];
}

/** What is shown of what it made; the outputs that the queue keeps have a number, from 1 on, if they can be an input. */
export function shownOf(
  job: Job,
  about: AboutJob | null | undefined,
  at: number,
): { url: string; name: string; number: number | null } | null {
  const made = filesOf(job, about);
  const place = Math.min(at, made.length - 1);
  const found = made[place];
  if (!found) return null;
  const canBeInput = place < job.outputs.length && ["image", "video", "audio"].includes(kindOf(found.file.mime_type));
  return { url: found.file.url, name: found.name, number: canBeInput ? place + 1 : null };
}

/** What tells a job from others: its label, or its prompt, or what it runs. */
export const titleOf = (job: Pick<Job, "label" | "prompt" | "workflow_name">): string =>
  job.label || job.prompt || job.workflow_name || texts.title;

export interface HowFar {
  /** From 0 to 1; null while it is not known. */
  part: number | null;
  words: string;
}

/** How far a job that runs is, as its worker says it. */
export function howFar(progress: Job["progress"], leftSeconds?: number | null): HowFar {
  const given = progress ?? {};
  const part = typeof given.value === "number" ? Math.min(1, Math.max(0, given.value)) : null;
  const words: string[] = [];
  if (typeof given.node === "string" && given.node) words.push(given.node);
  if (typeof given.steps === "number" && given.steps) words.push(queue.step(Number(given.step ?? 0), given.steps));
  if (!words.length && typeof given.phase === "string" && given.phase) words.push(given.phase);
  if (typeof leftSeconds === "number") {
    words.push(leftSeconds < 1 ? queue.almost : queue.left(duration(leftSeconds)));
  }
  return { part, words: words.join(" · ") || queue.starting };
}

export interface Explanation {
  cause: string;
  advice: string;
  details: string | null;
}

/** An error as a card shows it: what happened, what to do, and all of it. */
export function explainError(error: string, detail: string | null | undefined): Explanation {
  const [cause = error, ...rest] = sentences(error);
  const details = detail && detail !== error ? unfold(detail) : null;
  const more = rest.join(" ");
  const known = texts.advice.find(([pattern]) => pattern.test(error) || pattern.test(detail ?? ""));
  return { cause, advice: [more, known?.[1] ?? (more ? "" : texts.adviceElse)].filter(Boolean).join(" "), details };
}

/** The first line, cut after its sentences; what is no sentence stays whole. */
export const sentences = (text: string): string[] =>
  text
    .trim()
    .split(/(?<=[.!?])\s+(?=[A-Z"“])/)
    .filter(Boolean);

/** The whole of what a program said, in lines; workers wrap it in JSON, sometimes twice. */
export function unfold(text: string): string {
  const found = parsed(text);
  if (!found) return text;
  if (typeof found.raw === "string") return unfold(found.raw);
  const { traceback, exception_type: type, exception_message: message, ...rest } = found;
  const lines = Array.isArray(traceback) ? `${type}: ${message}\n${traceback.join("")}\n` : "";
  return lines + JSON.stringify(lines ? rest : found, null, 2);
}

/** The sentence in what a worker said. */
export const sentenceIn = (text: string): string => String(parsed(text)?.error_message ?? text);

function parsed(text: string): Record<string, unknown> | null {
  try {
    const found: unknown = JSON.parse(text);
    return found && typeof found === "object" && !Array.isArray(found) ? (found as Record<string, unknown>) : null;
  } catch {
    return null;
  }
}

const FEW = 8;
const FIRST = ["prompt", "negative_prompt", "seed", "input"];

/** What people change most, and what was changed, first; a graph may have hundreds. */
export function sortedValues(inputs: readonly InputValue[]): { shown: InputValue[]; rest: InputValue[] } {
  const given = inputs.filter((each) => each.value !== "" && each.value !== null);
  const isShown = (each: InputValue) =>
    given.length <= FEW || each.url !== null || FIRST.includes(String(each.role)) || !each.is_default;
  return { shown: given.filter(isShown), rest: given.filter((each) => !isShown(each)) };
}

/** A word for a shell. */
export const quoted = (word: string): string =>
  /^[\w./:=@%+-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;

const isText = (value: unknown): value is string | number | bigint | boolean =>
  ["string", "number", "bigint", "boolean"].includes(typeof value);

/** The same job on the command line: its workflow with the values that are not the workflow's own. */
export function commandOf(job: Job, about: AboutJob | null): string {
  const slug = job.workflow_slug || about?.workflow_slug;
  if (!slug || !about) return `comfyrelay rerun ${job.id}`;
  const script = about.attempts.map((each) => each.about?.argv).find((each) => Array.isArray(each));
  if (script) return (script as unknown[]).map((each) => quoted(String(each))).join(" ");
  const words = ["comfyrelay", "run", slug];
  for (const each of about.inputs) {
    // a file of one's own is named by its id, which works from everywhere; of others only the name is known
    if (each.file_id) words.push("--set", `${each.key}=${each.file_id}`);
    else if (each.url !== null && each.role === "input" && !words.includes("--input"))
      words.push("--input", String(each.value));
    else if (each.url !== null || (!each.is_default && isText(each.value) && each.value !== "")) {
      words.push("--set", `${each.key}=${String(each.value)}`);
    }
  }
  return words.map(quoted).join(" ");
}

/** The same job as a call of the API. */
export function callOf(job: Job, about: AboutJob | null, origin: string, key: string): string {
  const given = about?.inputs ?? [];
  const isMain = (each: InputValue) => Boolean(each.file_id) && each.file_id === job.input_file_id;
  const values = Object.fromEntries([
    ...given
      .filter((each) => each.url === null && !each.is_default && each.value !== "" && each.value !== null)
      .map((each) => [each.key, each.value as Whole | string]),
    ...given.filter((each) => each.file_id && !isMain(each)).map((each) => [each.key, each.file_id]),
  ]);
  const body = {
    ...(job.effect_id !== null ? { effect_id: job.effect_id } : { workflow_slug: job.workflow_slug }),
    idempotency_key: key,
    ...(Object.keys(values).length && { input_payload: values }),
    ...(job.input_file_id && { input_file_id: job.input_file_id }),
  };
  const text = JSON.stringify(
    body,
    (_name, value) => (typeof value === "bigint" ? `\u0000${value}\u0000` : (value as unknown)),
    1,
  )
    .replace(/"\\u0000(-?\d+)\\u0000"/g, "$1")
    .replace(/\n\s*/g, " ");
  return [
    `${texts.callNeeds}\ncurl -X POST ${quoted(`${origin}/api/ai-jobs`)}`,
    `-H "Authorization: Bearer $COMFYRELAY_TOKEN"`,
    `-H 'Content-Type: application/json'`,
    `-d ${quoted(text)}`,
  ].join(" \\\n  ");
}
