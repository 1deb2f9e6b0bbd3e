import type { Whole } from "@/api/json";
import { create as texts } from "@/texts/create";
import { type Choice, type Input, isSeed, type Texts, type Value } from "./inputs";

/** Integers up to 64 bits stay exact; null if not a number. */
export function parseNumber(text: string): Whole | null {
  const bare = text.trim().replace(",", ".");
  if (/^[+-]?\d+$/.test(bare)) {
    return Number.isSafeInteger(Number(bare)) ? Number(bare) : BigInt(bare.replace("+", ""));
  }
  const found = Number(bare);
  return bare && Number.isFinite(found) ? found : null;
}

/** Exact beyond 2^53. */
export const addExact = (value: Whole, more: number): Whole =>
  typeof value === "number" && !(Number.isInteger(value) && Number.isInteger(more))
    ? value + more
    : (parseNumber(String(BigInt(value) + BigInt(more))) ?? value);

/** A scaled default follows its source, as on the server. */
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

/** Text of an unchanged field. An empty seed means a random one per job. */
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

/** Undefined if there is no valid value. */
export function parseValue(input: Input, text: string): Value | undefined {
  if (input.type === "boolean") return text === "true";
  if (input.type === "choice") return input.choices.find((each) => String(each) === text) as Value | undefined;
  if (input.type === "number") return parseNumber(text) ?? undefined;
  return text;
}

export function validateInput(input: Input, choice: Choice, given: Texts): string | null {
  const { problems } = texts;
  const text = textOf(input, choice, given);
  if (!text.trim()) return input.required && input.type !== "boolean" ? problems.required : null;
  if (input.type === "choice") return parseValue(input, text) === undefined ? problems.noChoice(text) : null;
  if (input.type === "text" && input.maximum && text.length > input.maximum && isChanged(input, choice, given))
    return problems.tooLong(formatNumber(input.maximum));
  if (input.type !== "number") return null;
  const value = parseNumber(text);
  if (value === null) return problems.noNumber;
  if (input.is_whole && typeof value === "number" && !Number.isInteger(value)) return problems.notWhole;
  // defaults may be out of range
  if (!isChanged(input, choice, given)) return null;
  const { minimum, maximum } = input;
  if (minimum !== null && minimum !== undefined && value < minimum) return problems.atLeast(formatNumber(minimum));
  if (maximum !== null && maximum !== undefined && value > maximum) return problems.atMost(formatNumber(maximum));
  return null;
}

/** Shortens floats beyond their precision. */
export const formatNumber = (value: Whole): string =>
  typeof value === "number" && Math.abs(value) >= 1e15 ? value.toExponential(1) : String(value);

/** `64 to 2048, in steps of 8`; empty for huge ranges. */
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

export function stepValue(input: Input, text: string, direction: 1 | -1): string {
  const now = parseNumber(text);
  if (now === null) return text;
  // without a step, integer defaults step by 1
  const step = input.step || (input.is_whole || Number.isInteger(input.default_value) ? 1 : 0.1);
  if (typeof now === "bigint") return String(addExact(now, direction * Math.max(1, Math.round(step))));
  // avoids 0.30000000000000004
  const next =
    Number.isInteger(now) && Number.isInteger(step) ? now + direction * step : roundFloat(now + direction * step);
  const low = Number(input.minimum ?? Number.NEGATIVE_INFINITY);
  const high = Number(input.maximum ?? Number.POSITIVE_INFINITY);
  return String(Math.min(high, Math.max(low, next)));
}

const LARGEST_RANDOM = 2 ** 53 - 1;

/** Below 2^53 and within the range of the node. */
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

/** The server uses the same pattern for prices. */
const isFrameRate = ({ key, type }: Input) => type === "number" && /(^|_)(fps|frame_rate)(_\d+)?$/.test(key);

/** Text next to a field: aspect ratio, seconds or range. */
export function describeValue(input: Input, choice: Choice, given: Texts): string {
  const numberOf = (found: Input | undefined): number =>
    found ? Number(parseNumber(textOf(found, choice, given)) ?? Number.NaN) : Number.NaN;
  if (input.role === "width") {
    const height = choice.properties.find((each) => each.role === "height");
    return describeSize(numberOf(input), numberOf(height));
  }
  if (input.role === "length") {
    const seconds = numberOf(input) / Math.min(...choice.properties.filter(isFrameRate).map(numberOf));
    return Number.isFinite(seconds) && seconds > 0 ? texts.form.seconds(Number(seconds.toFixed(1))) : texts.form.frames;
  }
  if (input.role === "duration") return texts.form.inSeconds;
  if (isSeed(input)) return textOf(input, choice, given).trim() ? texts.form.locked : texts.form.unlocked;
  return rangeText(input);
}
