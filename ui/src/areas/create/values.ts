import type { Whole } from "@/api/json";
import { create as texts } from "@/texts/create";
import { type Choice, type Input, isSeed, type Texts, type Value } from "./inputs";

/** A whole number of up to 64 bits, or any number; `null` for what is none. */
export function parseNumber(text: string): Whole | null {
  const bare = text.trim().replace(",", ".");
  if (/^[+-]?\d+$/.test(bare)) {
    return Number.isSafeInteger(Number(bare)) ? Number(bare) : BigInt(bare.replace("+", ""));
  }
  const found = Number(bare);
  return bare && Number.isFinite(found) ? found : null;
}

/** Exactly, also where a sum has more digits than a float. */
export const addExact = (value: Whole, more: number): Whole =>
  typeof value === "number" && !(Number.isInteger(value) && Number.isInteger(more))
    ? value + more
    : (parseNumber(String(BigInt(value) + BigInt(more))) ?? value);

/** What follows another value keeps its part of it until somebody sets it, as the server has it. */
function scaledDefault(input: Input, choice: Choice, given: Texts): Value | null {
  const own = (input.default_value ?? null) as Value | null;
  const source = choice.properties.find((each) => each.key === input.scaled_from);
  if (!source || typeof own !== "number" || typeof source.default_value !== "number") return own;
  const now = parseNumber(given[source.key] ?? "");
  if (typeof now !== "number") return own;
  const scaled = (own * now) / source.default_value;
  const part = input.is_whole ? Math.max(1, Math.floor(scaled + 0.5)) : scaled;
  return Math.min(
    Number(input.maximum ?? Number.POSITIVE_INFINITY),
    Math.max(Number(input.minimum ?? Number.NEGATIVE_INFINITY), part),
  );
}

/** What a field has while nobody touched it. A seed that is not given is drawn for each job. */
export function defaultText(input: Input, choice: Choice, given: Texts): string {
  if (isSeed(input)) return "";
  if (input.type === "choice") {
    const has = input.choices.some((each) => String(each) === String(input.default_value));
    return String(has ? input.default_value : (input.choices[0] ?? ""));
  }
  if (input.type === "boolean") return String(input.default_value === true);
  const value = scaledDefault(input, choice, given);
  return value === null ? "" : String(value);
}

export const textOf = (input: Input, choice: Choice, given: Texts): string =>
  given[input.key] ?? defaultText(input, choice, given);

export const isChanged = (input: Input, choice: Choice, given: Texts): boolean =>
  given[input.key] !== undefined && given[input.key] !== defaultText(input, choice, given);

/** What the server is sent for a text; nothing where it is empty and need not be given. */
export function parseValue(input: Input, text: string): Value | undefined {
  if (input.type === "boolean") return text === "true";
  if (input.type === "choice") return input.choices.find((each) => String(each) === text) as Value | undefined;
  if (input.type === "number") return parseNumber(text) ?? undefined;
  return text;
}

/** Why a text cannot be taken, as a sentence. */
export function validateInput(input: Input, choice: Choice, given: Texts): string | null {
  const { problems } = texts;
  const text = textOf(input, choice, given);
  if (!text.trim()) return input.required && input.type !== "boolean" ? problems.required : null;
  if (input.type === "choice") return parseValue(input, text) === undefined ? problems.noChoice(text) : null;
  if (input.type !== "number") return null;
  const value = parseNumber(text);
  if (value === null) return problems.noNumber;
  if (input.is_whole && typeof value === "number" && !Number.isInteger(value)) return problems.notWhole;
  // what was not touched may be out of range: that is the graph's own affair
  if (!isChanged(input, choice, given)) return null;
  const { minimum, maximum } = input;
  if (minimum !== null && minimum !== undefined && value < minimum) return problems.atLeast(formatNumber(minimum));
  if (maximum !== null && maximum !== undefined && value > maximum) return problems.atMost(formatNumber(maximum));
  return null;
}

/** Whole numbers with all their digits; what no float tells apart is shortened. */
export const formatNumber = (value: Whole): string =>
  typeof value === "number" && Math.abs(value) >= 1e15 ? value.toExponential(1) : String(value);

/** `64 to 2048, in steps of 8`; nothing for ranges that nobody reaches. */
export function rangeText(input: Input): string {
  const { minimum, maximum } = input;
  if (input.type !== "number" || isSeed(input)) return "";
  const from = minimum === null || minimum === undefined ? null : formatNumber(minimum);
  const to = maximum === null || maximum === undefined || maximum >= 10_000 ? null : formatNumber(maximum);
  const range = from !== null && to !== null ? texts.form.range(from, to) : to !== null ? texts.form.upTo(to) : "";
  const [isWhole, step] = [input.is_whole, input.step ?? 0];
  return isWhole && step > 1 ? [range, texts.form.steps(formatNumber(step))].filter(Boolean).join(", ") : range;
}

const roundFloat = (value: number): number => Number(value.toPrecision(12));

/** One step up or down, within the range. */
export function stepValue(input: Input, text: string, direction: 1 | -1): string {
  const now = parseNumber(text);
  if (now === null) return text;
  // where nobody said how far, a number that begins whole stays whole
  const step = input.step || (input.is_whole || Number.isInteger(input.default_value) ? 1 : 0.1);
  if (typeof now === "bigint") return String(addExact(now, direction * Math.max(1, Math.round(step))));
  // a tenth and a tenth and a tenth are not 0.30000000000000004
  const next =
    Number.isInteger(now) && Number.isInteger(step) ? now + direction * step : roundFloat(now + direction * step);
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

const ASPECT_RATIOS: [number, number][] = [
  [1, 1],
  [5, 4],
  [4, 3],
  [3, 2],
  [16, 9],
  [2, 1],
  [21, 9],
];

/** `16:9 · 0.4 MP`. */
export function describeSize(width: number, height: number): string {
  if (!(width > 0 && height > 0)) return "";
  const [long, small] = width >= height ? [width, height] : [height, width];
  const known = ASPECT_RATIOS.find(([a, b]) => Math.abs(long / small - a / b) <= 0.04 * (a / b));
  const shape = known ? (width >= height ? known.join(":") : [...known].reverse().join(":")) : "";
  const pixels = texts.form.megapixels(Number(((width * height) / 1e6).toPrecision(2)));
  return shape ? `${shape} · ${pixels}` : pixels;
}

/** What a value means, beside its field: the shape of a size, the seconds of frames. */
export function describeValue(input: Input, choice: Choice, given: Texts): string {
  const numberOf = (found: Input | undefined): number =>
    found ? Number(parseNumber(textOf(found, choice, given)) ?? Number.NaN) : Number.NaN;
  if (input.role === "width") {
    const height = choice.properties.find((each) => each.role === "height");
    return describeSize(numberOf(input), numberOf(height));
  }
  if (input.role === "length") {
    const rate = choice.properties.find((each) => /(^|_)(fps|frame_rate)$/.test(each.key));
    const seconds = numberOf(input) / numberOf(rate);
    return Number.isFinite(seconds) && seconds > 0 ? texts.form.seconds(Number(seconds.toFixed(1))) : texts.form.frames;
  }
  if (input.role === "duration") return texts.form.inSeconds;
  if (isSeed(input)) return textOf(input, choice, given).trim() ? texts.form.locked : texts.form.unlocked;
  return rangeText(input);
}
