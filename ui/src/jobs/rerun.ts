// A job as a shell command and as an API call.

import { stringify, type Whole } from "@/api/json";
import type { AboutJob, InputValue, Job } from "@/api/types";
import { job as texts } from "@/texts/job";

/** Quotes an argument for a POSIX shell. */
export const shellQuote = (argument: string): string =>
  /^[\w./:=@%+-]+$/.test(argument) ? argument : `'${argument.replaceAll("'", "'\\''")}'`;

const isText = (value: unknown): value is string | number | bigint | boolean =>
  ["string", "number", "bigint", "boolean"].includes(typeof value);

/** The command that runs the job again: its workflow with all values that are not defaults. */
export function shellCommand(job: Job, about: AboutJob | null): string {
  const slug = job.workflow_slug || about?.workflow_slug;
  if (!slug || !about) return `comfyrelay rerun ${job.id}`;
  const script = about.attempts.map((each) => each.about?.argv).find((each) => Array.isArray(each));
  if (script) return (script as unknown[]).map((each) => shellQuote(String(each))).join(" ");
  const args = ["comfyrelay", "run", slug];
  for (const each of about.inputs) {
    // uploaded files have an id, which works on every machine; other files only have a name
    if (each.file_id) args.push("--set", `${each.key}=${each.file_id}`);
    else if (each.url !== null && each.role === "input" && !args.includes("--input"))
      args.push("--input", String(each.value));
    else if (each.url !== null || (!each.is_default && isText(each.value) && each.value !== "")) {
      args.push("--set", `${each.key}=${String(each.value)}`);
    }
  }
  return args.map(shellQuote).join(" ");
}

/** A curl command that adds the job again. */
export function curlCommand(job: Job, about: AboutJob | null, origin: string, key: string): string {
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
  const text = stringify(body, 1).replace(/\n\s*/g, " ");
  return [
    `${texts.callNeeds}\ncurl -X POST ${shellQuote(`${origin}/api/ai-jobs`)}`,
    `-H "Authorization: Bearer $COMFYRELAY_TOKEN"`,
    `-H 'Content-Type: application/json'`,
    `-d ${shellQuote(text)}`,
  ].join(" \\\n  ");
}
