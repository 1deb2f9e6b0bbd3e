// Seeds have 64 bits, more than JavaScript's numbers hold exactly. In JSON such a number is the only thing outside of
// texts with so many digits in a row; on its way it is a text with a mark that no other text has.
const MARK = "\u0000whole:";
const LONG = /"(?:[^"\\]|\\.)*"|(?<![\d.eE+-])-?\d{16,}(?![\d.eE])/g;
const MANY_DIGITS = /\d{16}/;
const MARKED = /"\\u0000whole:(-?\d+)"/g;

/** A whole number of up to 64 bits: a `bigint` where a `number` would be rounded. */
export type Whole = number | bigint;

const whole = (text: string): Whole => (Number.isSafeInteger(Number(text)) ? Number(text) : BigInt(text));

/** JSON, with numbers that JavaScript would round kept whole. */
export const parse = (text: string): unknown =>
  // most answers have none, and are long
  !MANY_DIGITS.test(text)
    ? JSON.parse(text)
    : JSON.parse(
        text.replace(LONG, (found) => (found.startsWith('"') ? found : JSON.stringify(MARK + found))),
        (_key, value: unknown) =>
          typeof value === "string" && value.startsWith(MARK) ? whole(value.slice(MARK.length)) : value,
      );

/** The same back. */
export const written = (value: unknown): string =>
  JSON.stringify(value, (_key, each: unknown) => (typeof each === "bigint" ? `${MARK}${each}` : each)).replace(
    MARKED,
    "$1",
  );
