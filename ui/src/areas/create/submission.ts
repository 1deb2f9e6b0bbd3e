// Builds API requests from a draft.

import type { Whole } from "@/api/json";
import type { Draft, WildcardMode } from "./drafts";
import { type Choice, isFile, isPrompt, isSeed, negativeOf, primaryOf, promptOf, seedOf, type Value } from "./inputs";
import {
  expandSweep,
  isCountedByServer,
  itemLabel,
  jobCount,
  MAX_JOBS,
  type SweepItem,
  sweepOf,
  sweptKeys,
} from "./sweep";
import { addExact, isChanged, parseNumber, parseValue, randomSeed, textOf } from "./values";

type Values = Record<string, Value>;

/** Batch request of a desk. */
export interface DeskBatch {
  effect_slug?: string;
  workflow_slug?: string;
  label?: string;
  input_subdir?: string;
  input_file_ids?: string[];
  prompts?: string[];
  negative_prompts?: string[];
  tries?: number;
  seeds?: { mode: "fixed" | "increment"; start: Whole };
  mode?: "product" | "pairwise";
  sweep?: Readonly<Record<string, string>>;
  wildcards?: WildcardMode;
  values: Values;
  output_folder?: string;
  priority?: number;
  notify_urls?: string[];
}

const given = (draft: Draft, key: string): string[] =>
  (draft.files[key] ?? []).flatMap((each) => (each.id === null ? [] : [each.id]));

/** Unchanged values are not sent: the server has exact defaults. */
export function payloadOf(choice: Choice, draft: Draft): Values {
  const lists = sweepOf(choice, draft);
  const listed = [lists.prompts.length ? promptOf(choice) : null, lists.negatives.length ? negativeOf(choice) : null];
  const values: Values = {};
  for (const input of choice.properties) {
    if (input.is_primary_input || listed.includes(input) || input.key in draft.sweep) continue;
    if (isFile(input)) {
      const [id] = given(draft, input.key);
      if (id) values[input.key] = id;
      continue;
    }
    const text = textOf(input, choice, draft.texts);
    const isUnset = !isChanged(input, choice, draft.texts) && (input.default_value ?? null) !== null;
    if (isUnset || (!text.trim() && !isChanged(input, choice, draft.texts))) continue;
    const value = parseValue(input, isPrompt(input) ? text.trim() : text);
    if (value !== undefined) values[input.key] = value;
  }
  return values;
}

/** Changed values without files and prompt lists. */
export function presetValues(choice: Choice, draft: Draft): Values {
  const { prompts, negatives } = sweepOf(choice, draft);
  const listed = [prompts.length ? promptOf(choice) : null, negatives.length ? negativeOf(choice) : null];
  const kept = choice.properties.flatMap((each): [string, Value][] => {
    if (isFile(each) || listed.includes(each) || !isChanged(each, choice, draft.texts)) return [];
    const text = textOf(each, choice, draft.texts);
    const value = text.trim() ? parseValue(each, text) : undefined;
    return value === undefined ? [] : [[each.key, value]];
  });
  return Object.fromEntries(kept);
}

export const targetOf = (choice: Choice): { effect_slug: string } | { workflow_slug: string } =>
  choice.kind === "effect" ? { effect_slug: choice.slug } : { workflow_slug: choice.slug };

export function batchRequest(choice: Choice, draft: Draft): DeskBatch {
  const lists = sweepOf(choice, draft);
  const primary = primaryOf(choice);
  const values = payloadOf(choice, draft);
  const seed = seedOf(choice);
  const start = seed ? parseNumber(draft.texts[seed.key] ?? "") : null;
  const isMany = isCountedByServer(choice, draft) || jobCount(lists) > 1;
  const plans = isMany && seed && !(seed.key in draft.sweep) && start !== null;
  if (plans) delete values[seed.key];
  const swept = sweptKeys(choice, draft);
  const notify = draft.notify.split(/\s+/).filter(Boolean);
  return {
    ...targetOf(choice),
    values,
    ...(draft.label.trim() && { label: draft.label.trim() }),
    ...(draft.folder !== null
      ? { input_subdir: draft.folder }
      : primary && given(draft, primary.key).length && { input_file_ids: given(draft, primary.key) }),
    ...(lists.prompts.length && { prompts: lists.prompts }),
    ...(lists.negatives.length && { negative_prompts: lists.negatives }),
    ...(lists.tries > 1 && { tries: lists.tries }),
    ...(plans && { seeds: { mode: draft.seeds, start } }),
    ...(lists.isPairwise && { mode: "pairwise" as const }),
    ...(swept.length && { sweep: Object.fromEntries(swept.map((key) => [key, draft.sweep[key] ?? ""])) }),
    ...(draft.wildcards !== "off" && { wildcards: draft.wildcards }),
    ...(draft.outputFolder.trim() && { output_folder: draft.outputFolder.trim() }),
    ...(draft.priority && { priority: draft.priority }),
    ...(notify.length && { notify_urls: notify }),
  };
}

/** One job without batch options. */
export const isSingleJob = (choice: Choice, draft: Draft): boolean =>
  !isCountedByServer(choice, draft) &&
  jobCount(sweepOf(choice, draft)) === 1 &&
  !draft.outputFolder.trim() &&
  !draft.notify.trim() &&
  !draft.label.trim();

/** One request per job: for a single job, and for servers, which do not expand lists. */
export function jobRequests(choice: Choice, draft: Draft) {
  const lists = sweepOf(choice, draft);
  const [prompt, negative] = [promptOf(choice), negativeOf(choice)];
  const values = payloadOf(choice, draft);
  const count = Math.min(MAX_JOBS, jobCount(lists));
  return expandSweep(lists, count).map((item) => ({
    input_payload: {
      ...values,
      ...(item.prompt !== null && prompt && { [prompt.key]: item.prompt }),
      ...(item.negative !== null && negative && { [negative.key]: item.negative }),
      ...seedsOf(choice, draft, values, item),
    },
    ...(item.file?.id && { input_file_id: item.file.id }),
    ...(count > 1 && { label: itemLabel(item, lists.tries).slice(0, 200) }),
  }));
}

/** A fixed seed applies to the first job; later jobs increment it, repeat it or get random ones. */
function seedsOf(choice: Choice, draft: Draft, values: Values, item: SweepItem): Values {
  const main = seedOf(choice);
  const start = main ? values[main.key] : undefined;
  if (!item.number || !main || start === undefined) return {};
  if (draft.seeds === "fixed") return {};
  const next = addExact(start as Whole, item.number);
  const others = choice.properties.filter((each) => isSeed(each) && each !== main && each.key in values);
  return { [main.key]: next, ...Object.fromEntries(others.map((each) => [each.key, Number(randomSeed(each))])) };
}

export const folderProblemIn = ({ errors }: { errors: Readonly<Record<string, string>> }): string | null =>
  errors.input_subdir ?? null;

/** Server errors by field key: `items.3.steps` -> `steps`, `input_file_id` -> the primary input. */
export function errorsByField(choice: Choice, errors: Readonly<Record<string, string>>): Record<string, string> {
  const primary = primaryOf(choice);
  const named: Record<string, string | undefined> = {
    input_file_id: primary?.key,
    input_file_ids: primary?.key,
    input_subdir: choice.isScript ? "input_subdir" : primary?.key,
    video_id: primary?.key,
    prompts: promptOf(choice)?.key,
    negative_prompts: negativeOf(choice)?.key,
    seed: seedOf(choice)?.key,
    seeds: seedOf(choice)?.key,
  };
  const found = Object.entries(errors).map(([name, why]) => {
    const key = name.replace(/^items\.\d+\./, "").replace(/^(input_payload|values)\./, "");
    const isKnown = choice.properties.some((each) => each.key === key);
    return [isKnown ? key : (named[key.split(".")[0] ?? ""] ?? key.split(".")[0] ?? key), why] as const;
  });
  return Object.fromEntries(found);
}
