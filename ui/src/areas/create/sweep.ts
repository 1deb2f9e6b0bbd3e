// Expands a form into jobs: all combinations of inputs, prompts and variations, or pairs.

import { create as texts } from "@/texts/create";
import type { Draft, DraftFile } from "./drafts";
import { type Choice, canVary, isFile, negativeOf, primaryOf, promptOf, seedOf } from "./inputs";
import { textOf } from "./values";

export const MAX_JOBS = 10_000;
export const MAX_VARIATIONS = 1000;
const LABEL_LENGTH = 60;

export const splitLines = (text: string): string[] =>
  text
    .split("\n")
    .map((each) => each.trim())
    .filter(Boolean);

export interface Sweep {
  files: readonly DraftFile[];
  prompts: string[];
  negatives: string[];
  tries: number;
  isPairwise: boolean;
}

export function isOnePromptPerLine(choice: Choice, draft: Draft): boolean {
  const own = promptOf(choice)?.default_value;
  return draft.byLine ?? !(typeof own === "string" && own.trim().includes("\n"));
}

/** Pairing needs several lists: files, prompts or swept fields. */
export const canPair = (files: number, prompts: number, choice: Choice, draft: Draft): boolean =>
  [files > 1 || draft.folder !== null, prompts > 1, ...sweptKeys(choice, draft)].filter(Boolean).length > 1;

/** A draft may sweep fields that only another version of the workflow has. They are kept but ignored. */
export const sweptKeys = (choice: Choice, draft: Draft): string[] =>
  Object.keys(draft.sweep).filter((key) => choice.properties.some((each) => each.key === key && !isFile(each)));

const WILDCARD = /\{[^{}]*\||__[A-Za-z0-9-]+([_/][A-Za-z0-9-]+)*__/;

/** Whether a prompt contains `{a|b}` or `__name__`. */
export const hasWildcards = (text: string): boolean => WILDCARD.test(text);

/** Whether only the server can count the jobs: for a folder, a sweep or wildcards. */
export const isCountedByServer = (choice: Choice, draft: Draft): boolean =>
  draft.folder !== null || sweptKeys(choice, draft).length > 0 || draft.wildcards !== "off";

/** A single prompt is a plain value, not a list. */
export function sweepOf(choice: Choice, draft: Draft): Sweep {
  const [primary, prompt, negative] = [primaryOf(choice), promptOf(choice), negativeOf(choice)];
  const lines = (key: typeof prompt, isOn: boolean): string[] => {
    const found = key && isOn ? splitLines(textOf(key, choice, draft.texts)) : [];
    return found.length > 1 ? found : [];
  };
  const tries = Math.round(Number(draft.tries));
  const files = primary ? (draft.files[primary.key] ?? []) : [];
  const prompts = lines(prompt, isOnePromptPerLine(choice, draft));
  return {
    files,
    prompts,
    negatives: lines(negative, draft.negativesByLine),
    tries: canVary(choice) ? Math.min(MAX_VARIATIONS, Math.max(1, tries || 1)) : 1,
    // the draft keeps the choice for later
    isPairwise: draft.isPairwise && canPair(files.length, prompts.length, choice, draft),
  };
}

/** `files`: file count of a folder, from the server. */
export function jobCount(lists: Sweep, files = lists.files.length): number {
  const pairs = lists.isPairwise && files ? files : Math.max(1, files) * Math.max(1, lists.prompts.length);
  return pairs * Math.max(1, lists.negatives.length) * lists.tries;
}

/** `Steps (3) × Cfg (8)`, as the server counts them; empty for one job. */
export const axesSummary = (axes: readonly { name: string; count: number }[]): string =>
  axes.map((each) => texts.plan.axis(each.name, each.count)).join(" × ");

/** Pairs need one prompt per file. */
export const isUneven = (lists: Sweep, files = lists.files.length): boolean =>
  lists.isPairwise && lists.prompts.length !== files;

export interface SweepItem {
  /** From 0. */
  number: number;
  file: DraftFile | null;
  prompt: string | null;
  negative: string | null;
  /** From 1. */
  attempt: number;
}

/** The first jobs, in server order. */
export function expandSweep(lists: Sweep, most: number): SweepItem[] {
  const files: (DraftFile | null)[] = lists.files.length ? [...lists.files] : [null];
  const prompts: (string | null)[] = lists.prompts.length ? lists.prompts : [null];
  const negatives: (string | null)[] = lists.negatives.length ? lists.negatives : [null];
  const pairs: [DraftFile | null, string | null][] = lists.isPairwise
    ? files.map((file, place) => [file, prompts[place] ?? null])
    : files.flatMap((file) => prompts.map((prompt): [DraftFile | null, string | null] => [file, prompt]));
  const items: SweepItem[] = [];
  for (const [file, prompt] of pairs) {
    for (const negative of negatives) {
      for (let attempt = 1; attempt <= lists.tries; attempt += 1) {
        if (items.length === most) return items;
        items.push({ number: items.length, file, prompt, negative, attempt });
      }
    }
  }
  return items;
}

/** Truncates between words. */
export function excerpt(text: string, length = LABEL_LENGTH): string {
  const line = text.trim().replace(/\s+/g, " ");
  return line.length <= length ? line : `${line.slice(0, length).replace(/ \S*$/, "")}…`;
}

export function variationsHint(choice: Choice, draft: Draft): string {
  const seed = seedOf(choice);
  if (!seed) return choice.drawsSeed ? texts.form.triesHint : texts.form.triesAlike;
  const isKept = (draft.texts[seed.key] ?? "").trim() !== "";
  return isKept && draft.seeds === "fixed" ? texts.form.triesSameSeed : texts.form.triesHint;
}

/** Short label of a job. */
export function itemLabel(item: SweepItem, tries: number): string {
  const name = item.file?.name.replace(/\.\w+$/, "");
  return [name, excerpt(item.prompt ?? ""), tries > 1 && texts.plan.attempt(item.attempt)].filter(Boolean).join(" · ");
}

/** `12 images × 2 prompts × 3 variations`; empty for one job. */
export function sweepSummary(lists: Sweep, input: string, files = lists.files.length): string {
  const { plan } = texts;
  const isPaired = lists.isPairwise && files > 0;
  const parts = [
    isPaired ? plan.pairs(files) : files > 1 && plan.files(files, input),
    lists.prompts.length > 1 && !isPaired && plan.prompts(lists.prompts.length),
    lists.negatives.length > 1 && plan.negatives(lists.negatives.length),
    lists.tries > 1 && plan.tries(lists.tries),
  ];
  return parts.filter(Boolean).join(" × ");
}
