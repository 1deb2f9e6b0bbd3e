// Seeds have 64 bits, more than a JavaScript number can hold. They are the only numbers in our JSON with 16 or more
// digits. Parsing and writing turn them into marked strings; in memory they are `bigint`.
const MARK = "\u0000whole:";
const LONG = /"(?:[^"\\]|\\.)*"|(?<![\d.eE+-])-?\d{16,}(?![\d.eE])/g;
const MANY_DIGITS = /\d{16}/;
const MARKED = /"\\u0000whole:(-?\d+)"/g;

/** An integer of up to 64 bits: a `bigint` if a `number` would round it. */
export type Whole = number | bigint;

const whole = (text: string): Whole => (Number.isSafeInteger(Number(text)) ? Number(text) : BigInt(text));

/** Parses JSON without rounding large integers. */
export const parse = (text: string): unknown =>
  // fast path: most responses have no such number
  !MANY_DIGITS.test(text)
    ? JSON.parse(text)
    : JSON.parse(
        text.replace(LONG, (found) => (found.startsWith('"') ? found : JSON.stringify(MARK + found))),
        (_key, value: unknown) =>
          typeof value === "string" && value.startsWith(MARK) ? whole(value.slice(MARK.length)) : value,
      );

/** Writes JSON without rounding large integers. */
export const stringify = (value: unknown, indent?: number): string =>
  JSON.stringify(value, (_key, each: unknown) => (typeof each === "bigint" ? `${MARK}${each}` : each), indent).replace(
    MARKED,
    "$1",
  );

/** Returns strings unchanged and other values as JSON. */
export const textOf = (value: unknown): string => (typeof value === "string" ? value : stringify(value));
