// What a form stands for: every input with every prompt, or pair by pair, each as often as it is to be tried.

import { create as texts } from "@/texts/create";
import type { Draft, DraftFile } from "./drafts";
import { type Choice, negativeOf, primaryOf, promptOf, seedOf } from "./inputs";
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

/** Whether each line of the prompt is one of its own. */
export function isOnePromptPerLine(choice: Choice, draft: Draft): boolean {
  const own = promptOf(choice)?.default_value;
  return draft.byLine ?? !(typeof own === "string" && own.trim().includes("\n"));
}

/** Whether there is something to pair: one prompt, or one file, goes with all. */
export const canPair = (files: number, prompts: number, draft: Draft): boolean =>
  prompts > 1 && (files > 1 || draft.folder !== null);

/** Lists that are empty do not count; a prompt that is one for all is none of them. */
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
    tries: seedOf(choice) || choice.kind === "effect" ? Math.min(MAX_VARIATIONS, Math.max(1, tries || 1)) : 1,
    // what was chosen is kept for when there are several again
    isPairwise: draft.isPairwise && canPair(files.length, prompts.length, draft),
  };
}

/** `files`: how many there are, where they are in a folder and only the server has counted them. */
export function jobCount(lists: Sweep, files = lists.files.length): number {
  const pairs = lists.isPairwise && files ? files : Math.max(1, files) * Math.max(1, lists.prompts.length);
  return pairs * Math.max(1, lists.negatives.length) * lists.tries;
}

/** Whether one of each cannot be had: as many prompts as files make pairs. */
export const isUneven = (lists: Sweep, files = lists.files.length): boolean =>
  lists.isPairwise && lists.prompts.length !== files;

export interface SweepItem {
  /** Its place, from 0 on. */
  number: number;
  file: DraftFile | null;
  prompt: string | null;
  negative: string | null;
  /** From 1 on. */
  attempt: number;
}

/** The first of the items, in the order in which the server makes them. */
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

/** The beginning of a text, cut between words. */
export function excerpt(text: string, length = LABEL_LENGTH): string {
  const line = text.trim().replace(/\s+/g, " ");
  return line.length <= length ? line : `${line.slice(0, length).replace(/ \S*$/, "")}…`;
}

/** What several of the same differ in, or that they do not. */
export function variationsHint(choice: Choice, draft: Draft): string {
  const seed = seedOf(choice);
  if (!seed) return texts.form.triesAlike;
  const isKept = (draft.texts[seed.key] ?? "").trim() !== "";
  return isKept && draft.seeds === "fixed" ? texts.form.triesSameSeed : texts.form.triesHint;
}

/** A few words that tell an item from the others. */
export function itemLabel(item: SweepItem, tries: number): string {
  const name = item.file?.name.replace(/\.\w+$/, "");
  return [name, excerpt(item.prompt ?? ""), tries > 1 && texts.plan.attempt(item.attempt)].filter(Boolean).join(" · ");
}

/** `12 pictures × 2 prompts × 3 tries`; empty for one. */
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
