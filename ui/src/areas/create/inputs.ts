// Inputs of workflows and effects: pure functions.

import type { Whole } from "@/api/json";
import type { Effect, Workflow } from "@/api/types";
import { create as texts } from "@/texts/create";

export type Input = Effect["properties"][number];

export type Value = string | boolean | Whole;

/** Typed texts by field key; only changed fields. */
export type Texts = Readonly<Record<string, string>>;

/** An effect or a workflow. */
export interface Choice {
  /** Key in URLs and drafts. */
  slug: string;
  /** The workflow that its jobs run. */
  workflowSlug: string;
  name: string;
  kind: "effect" | "workflow";
  effectId: number | null;
  properties: Input[];
  coverUrl: string | null;
  outputMime: string;
  /** The price of a job, or the lowest price if it depends on the inputs. */
  tokens: number;
  hasFixedPrice: boolean;
  /** Whether the price depends on the primary input. */
  priceNeedsInput: boolean;
  /** Whether each job gets a random seed that is not a field. */
  drawsSeed: boolean;
  /** Why the workflow cannot run yet. */
  waiting: string | null;
  isScript: boolean;
}

export const choicesOf = (effects: Effect[], workflows: Workflow[], script: string | null): Choice[] => [
  ...workflows.map(
    (each): Choice => ({
      slug: each.slug,
      workflowSlug: each.slug,
      name: each.name,
      kind: "workflow",
      effectId: null,
      properties: each.properties,
      coverUrl: each.cover_url ?? null,
      outputMime: each.output_mime_type,
      tokens: 0,
      hasFixedPrice: true,
      priceNeedsInput: false,
      drawsSeed: each.draws_seed ?? false,
      waiting: each.waiting ?? null,
      isScript: each.slug === script,
    }),
  ),
  ...effects.map(
    (each): Choice => ({
      slug: each.slug,
      workflowSlug: each.workflow_slug,
      name: each.name,
      kind: "effect",
      effectId: each.id,
      properties: each.properties,
      coverUrl: each.cover_url ?? null,
      outputMime: each.output_mime_type,
      tokens: each.credits_cost,
      hasFixedPrice: each.max_credits_cost == null,
      priceNeedsInput: each.price_needs_input,
      drawsSeed: false,
      waiting: null,
      isScript: false,
    }),
  ),
];

const FILES = ["image", "video", "audio"];

export const isFile = (input: Input): boolean => FILES.includes(input.type);

export const isSeed = (input: Input): boolean => input.type === "number" && input.role === "seed";

export const isPrompt = (input: Input): boolean => input.type === "text" && input.role === "prompt";

export const isNegative = (input: Input): boolean => input.type === "text" && input.role === "negative_prompt";

export const primaryOf = (choice: Choice): Input | undefined => choice.properties.find((each) => each.is_primary_input);

export const promptOf = (choice: Choice): Input | undefined => choice.properties.find(isPrompt);

export const negativeOf = (choice: Choice): Input | undefined => choice.properties.find(isNegative);

/** The seed that varies per job: `seed`, else the first, as on the server. */
export function seedOf(choice: Choice): Input | undefined {
  const seeds = choice.properties.filter(isSeed);
  return seeds.find((each) => each.key === "seed") ?? seeds[0];
}

/** Whether repeated jobs may differ. The page does not know the seeds of an effect. */
export const canVary = (choice: Choice): boolean =>
  seedOf(choice) !== undefined || choice.drawsSeed || choice.kind === "effect";

export const acceptsMime = (input: Input, mime: string): boolean => isFile(input) && mime.startsWith(`${input.type}/`);

export function isMultiline(input: Input): boolean {
  if (input.type !== "text") return false;
  const text = String(input.default_value ?? "");
  return isPrompt(input) || isNegative(input) || /prompt/.test(input.key) || text.length > 60 || text.includes("\n");
}

const MAX_VISIBLE = 6;

/** A form with more fields shows only required fields and the first of each role. */
const MAX_UNFOLDED = 60;

export interface Sections {
  /** The form of an author, in its order: a file, a multi-line field, or small fields side by side. */
  rows: Input[][];
  files: Input[];
  /** Multi-line fields. */
  wide: Input[];
  /** Small fields, side by side. */
  main: Input[];
  /** Collapsed, by node. */
  groups: { name: string; inputs: Input[] }[];
}

const wordsOf = (text: string): string[] =>
  text
    .toLowerCase()
    .split(/[^\p{L}\p{N}]+/u)
    .filter(Boolean);

/** Shortens labels under a heading, so that they do not repeat its words. "Upscale method, upscale image" becomes
 * "Method" under "Upscale image". Labels stay as they are if they would be ambiguous. */
export function withoutHeading<T extends Pick<Input, "label">>(heading: string, inputs: readonly T[]): T[] {
  const known = wordsOf(heading);
  const shorten = (label: string): string => {
    const at = label.lastIndexOf(", ");
    const isRepeated = at > 0 && wordsOf(label.slice(at)).every((word) => known.includes(word));
    const words = (isRepeated ? label.slice(0, at) : label).split(" ");
    while (words.length > 1 && known.includes(words[0]?.toLowerCase() ?? "")) words.shift();
    const short = words.join(" ");
    return short.charAt(0).toUpperCase() + short.slice(1);
  };
  const labels = inputs.map(({ label }) => shorten(label));
  return new Set(labels).size < labels.length
    ? [...inputs]
    : inputs.map((input, index) => ({ ...input, label: labels[index] ?? input.label }));
}

/** Detected fields have the group of their node; an author's own fields have none. */
const isAuthored = ({ isScript, properties }: Choice): boolean =>
  !isScript && properties.length <= MAX_UNFOLDED && properties.every((each) => (each.group ?? null) === null);

const isSmall = (input: Input): boolean => !isFile(input) && !isMultiline(input);

function rowsOf(inputs: readonly Input[]): Input[][] {
  const rows: Input[][] = [];
  for (const each of inputs) {
    const last = rows.at(-1);
    if (last?.[0] && isSmall(each) && isSmall(last[0])) last.push(each);
    else rows.push([each]);
  }
  return rows;
}

/** Shows an author's form as it is. Of a detected form, shows required and common fields; collapses the rest by node. */
export function sectionsOf(choice: Choice): Sections {
  if (isAuthored(choice)) return { rows: rowsOf(choice.properties), files: [], wide: [], main: [], groups: [] };
  const seed = seedOf(choice);
  const isLong = choice.properties.length > MAX_UNFOLDED;
  const isFirst = (input: Input): boolean => choice.properties.find((each) => each.role === input.role) === input;
  const isSeen = (input: Input, place: number): boolean => {
    if (choice.isScript || input.required) return true;
    if (isSeed(input)) return input === seed;
    if (input.role === "model") return false;
    const hasRole = (input.role ?? null) !== null;
    if (isLong) return hasRole && isFirst(input);
    return hasRole || (place < MAX_VISIBLE && (input.group ?? null) === null);
  };
  const files = choice.properties.filter(isFile);
  const rest = choice.properties.filter((each) => !isFile(each));
  const seen = rest.filter(isSeen);
  const groups = new Map<string, Input[]>();
  for (const each of rest.filter((input, place) => !isSeen(input, place))) {
    const name = each.role === "model" ? texts.form.models : (each.group ?? texts.form.others);
    groups.set(name, [...(groups.get(name) ?? []), each]);
  }
  return {
    rows: [],
    files,
    wide: seen.filter(isMultiline),
    main: seen.filter((each) => !isMultiline(each)),
    groups: [...groups].map(([name, inputs]) => ({ name, inputs: withoutHeading(name, inputs) })),
  };
}
