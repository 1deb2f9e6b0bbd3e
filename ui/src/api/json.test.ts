import { describe, expect, it } from "vitest";
import { parse, written } from "./json";

describe("numbers of 64 bits", () => {
  it("are whole after reading and writing", () => {
    const text = '{"seed":18446744073709551615,"steps":20,"cfg":7.5}';
    expect(parse(text)).toEqual({ seed: 18446744073709551615n, steps: 20, cfg: 7.5 });
    expect(written(parse(text))).toBe(text);
  });

  it("are left alone where they are text", () => {
    const text = '{"prompt":"take 18446744073709551615 \\"of\\" them"}';
    expect(written(parse(text))).toBe(text);
  });

  it("are plain numbers where these hold them", () => {
    expect(parse("[9007199254740991]")).toEqual([9007199254740991]);
  });
});
