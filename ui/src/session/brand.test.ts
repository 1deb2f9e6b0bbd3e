import { describe, expect, it } from "vitest";
import { isLight } from "./brand";

describe("isLight", () => {
  it.each([
    ["#ffffff", true],
    ["#ff7d4d", true],
    ["#ffd400", true],
    ["#000000", false],
    ["#2f4fbd", false],
    ["#7a1fa2", false],
  ])("says whether dark text is readable on %s", (color, expected) => {
    expect(isLight(color)).toBe(expected);
  });
});
