import { describe, expect, it } from "vitest";
import { parse, stringify, textOf } from "./json";

describe("64-bit integers", () => {
  it("keep all digits", () => {
    const text = '{"seed":18446744073709551615,"steps":20,"cfg":7.5}';
    expect(parse(text)).toEqual({ seed: 18446744073709551615n, steps: 20, cfg: 7.5 });
    expect(stringify(parse(text))).toBe(text);
  });

  it("are left alone in strings", () => {
    const text = '{"prompt":"take 18446744073709551615 \\"of\\" them"}';
    expect(stringify(parse(text))).toBe(text);
  });

  it("are plain numbers if they fit", () => {
    expect(parse("[9007199254740991]")).toEqual([9007199254740991]);
  });

  it("are readable as text", () => {
    expect(textOf(18446744073709551615n)).toBe("18446744073709551615");
    expect(textOf({ seed: 18446744073709551615n })).toBe('{"seed":18446744073709551615}');
    expect(textOf("a cat")).toBe("a cat");
  });
});
