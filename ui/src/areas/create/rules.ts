// What a form knows of its fields: pure rules, without a page.

import type { Whole } from "@/api/json";
import type { Effect, Workflow } from "@/api/types";
import { create as texts } from "@/texts/create";

export type Input = Effect["properties"][number];
export type Value = string | boolean | Whole;
/** What was typed, by the key of its field. What nobody touched is not here. */
export type Texts = Readonly<Record<string, string>>;

/** An effect, or a workflow of one's own. */
export interface Choice {
  /** Its place in addresses and drafts. */
  slug: string;
  name: string;
  kind: "effect" | "workflow";
  effectId: number | null;
  properties: Input[];
  coverUrl: string | null;
  outputMime: string;
  tokens: number;
  /** Why no job can be made of it yet. */
  waiting: string | null;
  isScript: boolean;
}

export const choicesOf = (effects: Effect[], workflows: Workflow[], script: string | null): Choice[] => [
  ...workflows.map(
    (each): Choice => ({
      slug: each.slug,
      name: each.name,
      kind: "workflow",
      effectId: null,
      properties: each.properties,
      coverUrl: each.cover_url ?? null,
      outputMime: each.output_mime_type,
      tokens: 0,
      waiting: each.waiting ?? null,
      isScript: each.slug === script,
    }),
  ),
  ...effects.map(
    (each): Choice => ({
      slug: each.slug,
      name: each.name,
      kind: "effect",
      effectId: each.id,
      properties: each.properties,
      coverUrl: each.cover_url ?? null,
      outputMime: each.output_mime_type,
      tokens: each.credits_cost,
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
/** The seed that every job gets another value of: by its name, else the first, as the server has it. */
export function seedOf(choice: Choice): Input | undefined {
  const seeds = choice.properties.filter(isSeed);
  return seeds.find((each) => each.key === "seed") ?? seeds[0];
}

/** Whether a field takes a file of this type, such as `image/png`. */
export const takes = (input: Input, mime: string): boolean => isFile(input) && mime.startsWith(`${input.type}/`);

/** Long texts get a field of several lines. */
export function isLong(input: Input): boolean {
  if (input.type !== "text") return false;
  const text = String(input.default_value ?? "");
  return isPrompt(input) || isNegative(input) || /prompt/.test(input.key) || text.length > 60 || text.includes("\n");
}

const MOST_SEEN = 6;

export interface Sections {
  files: Input[];
  /** Texts of several lines, and their like. */
  wide: Input[];
  /** Small ones, side by side. */
  main: Input[];
  /** Folded, by node. */
  groups: { name: string; inputs: Input[] }[];
}

/** What must be given and what people change most is seen at once; the rest is folded, under the names of nodes. */
export function sectionsOf(choice: Choice): Sections {
  const seed = seedOf(choice);
  const isSeen = (input: Input, place: number): boolean => {
    if (choice.isScript || input.required) return true;
    if (isSeed(input)) return input === seed;
    if (input.role === "model") return false;
    return (input.role ?? null) !== null || (place < MOST_SEEN && (input.group ?? null) === null);
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
    files,
    wide: seen.filter(isLong),
    main: seen.filter((each) => !isLong(each)),
    groups: [...groups].map(([name, inputs]) => ({ name, inputs })),
  };
}

/** A whole number of up to 64 bits, or any number; `null` for what is none. */
export function numberIn(text: string): Whole | null {
  const bare = text.trim().replace(",", ".");
  if (/^[+-]?\d+$/.test(bare)) {
    return Number.isSafeInteger(Number(bare)) ? Number(bare) : BigInt(bare.replace("+", ""));
  }
  const found = Number(bare);
  return bare && Number.isFinite(found) ? found : null;
}

/** Exactly, also where a sum has more digits than a float. */
export const added = (value: Whole, more: number): Whole =>
  typeof value === "number" && !(Number.isInteger(value) && Number.isInteger(more))
    ? value + more
    : (numberIn(String(BigInt(value) + BigInt(more))) ?? value);

/** What follows another value keeps its part of it until somebody sets it, as the server has it. */
function followed(input: Input, choice: Choice, given: Texts): Value | null {
  const own = (input.default_value ?? null) as Value | null;
  const source = choice.properties.find((each) => each.key === input.scaled_from);
  if (!source || typeof own !== "number" || typeof source.default_value !== "number") return own;
  const now = numberIn(given[source.key] ?? "");
  if (typeof now !== "number") return own;
  const scaled = (own * now) / source.default_value;
  const part = input.is_whole ? Math.max(1, Math.floor(scaled + 0.5)) : scaled;
  return Math.min(
    Number(input.maximum ?? Number.POSITIVE_INFINITY),
    Math.max(Number(input.minimum ?? Number.NEGATIVE_INFINITY), part),
  );
}

/** What a field has while nobody touched it. A seed that is not given is drawn for each job. */
export function unset(input: Input, choice: Choice, given: Texts): string {
  if (isSeed(input)) return "";
  if (input.type === "choice") {
    const has = input.choices.some((each) => String(each) === String(input.default_value));
    return String(has ? input.default_value : (input.choices[0] ?? ""));
  }
  if (input.type === "boolean") return String(input.default_value === true);
  const value = followed(input, choice, given);
  return value === null ? "" : String(value);
}

export const shownText = (input: Input, choice: Choice, given: Texts): string =>
  given[input.key] ?? unset(input, choice, given);

export const isChanged = (input: Input, choice: Choice, given: Texts): boolean =>
  given[input.key] !== undefined && given[input.key] !== unset(input, choice, given);

/** What the server is sent for a text; nothing where it is empty and need not be given. */
export function valueFrom(input: Input, text: string): Value | undefined {
  if (input.type === "boolean") return text === "true";
  if (input.type === "choice") return input.choices.find((each) => String(each) === text) as Value | undefined;
  if (input.type === "number") return numberIn(text) ?? undefined;
  return text;
}

/** Why a text cannot be taken, as a sentence. */
export function problemWith(input: Input, choice: Choice, given: Texts): string | null {
  const { problems } = texts;
  const text = shownText(input, choice, given);
  if (!text.trim()) return input.required && input.type !== "boolean" ? problems.required : null;
  if (input.type === "choice") return valueFrom(input, text) === undefined ? problems.noChoice(text) : null;
  if (input.type !== "number") return null;
  const value = numberIn(text);
  if (value === null) return problems.noNumber;
  if (input.is_whole && typeof value === "number" && !Number.isInteger(value)) return problems.notWhole;
  // what was not touched may be out of range: that is the graph's own affair
  if (!isChanged(input, choice, given)) return null;
  const { minimum, maximum } = input;
  if (minimum !== null && minimum !== undefined && value < minimum) return problems.atLeast(short(minimum));
  if (maximum !== null && maximum !== undefined && value > maximum) return problems.atMost(short(maximum));
  return null;
}

/** Whole numbers with all their digits; what no float tells apart is shortened. */
export const short = (value: Whole): string =>
  typeof value === "number" && Math.abs(value) >= 1e15 ? value.toExponential(1) : String(value);

/** `64 to 2048, in steps of 8`; nothing for ranges that nobody reaches. */
export function rangeOf(input: Input): string {
  const { minimum, maximum } = input;
  if (input.type !== "number" || isSeed(input)) return "";
  const from = minimum === null || minimum === undefined ? null : short(minimum);
  const to = maximum === null || maximum === undefined || maximum >= 10_000 ? null : short(maximum);
  const range = from !== null && to !== null ? texts.form.range(from, to) : to !== null ? texts.form.upTo(to) : "";
  const [isWhole, step] = [input.is_whole, input.step ?? 0];
  return isWhole && step > 1 ? [range, texts.form.steps(short(step))].filter(Boolean).join(", ") : range;
}

const inTwelve = (value: number): number => Number(value.toPrecision(12));

/** One step up or down, within the range. */
export function stepped(input: Input, text: string, direction: 1 | -1): string {
  const now = numberIn(text);
  if (now === null) return text;
  // where nobody said how far, a number that begins whole stays whole
  const step = input.step || (input.is_whole || Number.isInteger(input.default_value) ? 1 : 0.1);
  if (typeof now === "bigint") return String(added(now, direction * Math.max(1, Math.round(step))));
  // a tenth and a tenth and a tenth are not 0.30000000000000004
  const next =
    Number.isInteger(now) && Number.isInteger(step) ? now + direction * step : inTwelve(now + direction * step);
  const low = Number(input.minimum ?? Number.NEGATIVE_INFINITY);
  const high = Number(input.maximum ?? Number.POSITIVE_INFINITY);
  return String(Math.min(high, Math.max(low, next)));
}

const LARGEST_RANDOM = 2 ** 53 - 1;

/** By chance, below what JavaScript counts exactly and what the node takes. */
export function randomSeed(input: Input, random = Math.random): string {
  const low = Math.max(0, Number(input.minimum ?? 0));
  const high = Math.min(LARGEST_RANDOM, Number(input.maximum ?? LARGEST_RANDOM));
  return String(low + Math.floor(random() * (high - low)));
}

const KNOWN: [number, number][] = [
  [1, 1],
  [5, 4],
  [4, 3],
  [3, 2],
  [16, 9],
  [2, 1],
  [21, 9],
];

/** `16:9 · 0.4 MP`. */
export function sizeInWords(width: number, height: number): string {
  if (!(width > 0 && height > 0)) return "";
  const [long, small] = width >= height ? [width, height] : [height, width];
  const known = KNOWN.find(([a, b]) => Math.abs(long / small - a / b) <= 0.04 * (a / b));
  const shape = known ? (width >= height ? known.join(":") : [...known].reverse().join(":")) : "";
  const pixels = texts.form.megapixels(Number(((width * height) / 1e6).toPrecision(2)));
  return shape ? `${shape} · ${pixels}` : pixels;
}

/** What a value means, beside its field: the shape of a size, the seconds of frames. */
export function meaningOf(input: Input, choice: Choice, given: Texts): string {
  const numberOf = (found: Input | undefined): number =>
    found ? Number(numberIn(shownText(found, choice, given)) ?? Number.NaN) : Number.NaN;
  if (input.role === "width") {
    const height = choice.properties.find((each) => each.role === "height");
    return sizeInWords(numberOf(input), numberOf(height));
  }
  if (input.role === "length") {
    const rate = choice.properties.find((each) => /(^|_)(fps|frame_rate)$/.test(each.key));
    const seconds = numberOf(input) / numberOf(rate);
    return Number.isFinite(seconds) && seconds > 0 ? texts.form.seconds(Number(seconds.toFixed(1))) : texts.form.frames;
  }
  if (input.role === "duration") return texts.form.inSeconds;
  if (isSeed(input)) return shownText(input, choice, given).trim() ? texts.form.locked : texts.form.unlocked;
  return rangeOf(input);
}

/** Under which key a preset has a value for a field: its own, or its role (`steps` is for every sampler). */
export function presetKey(values: Readonly<Record<string, unknown>>, input: Input): string | null {
  if (isFile(input)) return null;
  const key = input.key in values ? input.key : (input.role ?? null);
  return key !== null && key in values && fits(input, values[key]) ? key : null;
}

function fits(input: Input, value: unknown): boolean {
  if (input.type === "choice") return input.choices.some((each) => each === value);
  if (input.type !== "number") return typeof value === (input.type === "boolean" ? "boolean" : "string");
  if (typeof value !== "number" && typeof value !== "bigint") return false;
  if (input.is_whole && typeof value === "number" && !Number.isInteger(value)) return false;
  return value >= (input.minimum ?? Number.NEGATIVE_INFINITY) && value <= (input.maximum ?? Number.POSITIVE_INFINITY);
}

/** The texts that a preset stands for here, and the names of its values that mean nothing here. */
export function applied(
  values: Readonly<Record<string, unknown>>,
  choice: Choice,
): { texts: Texts; ignored: string[] } {
  const found: Record<string, string> = {};
  const used = new Set<string>();
  for (const input of choice.properties) {
    const key = presetKey(values, input);
    if (key === null) continue;
    found[input.key] = String(values[key]);
    used.add(key);
  }
  return { texts: found, ignored: Object.keys(values).filter((key) => !used.has(key)) };
}
