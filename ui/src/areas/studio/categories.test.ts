import { describe, expect, it } from "vitest";
import { byCategory, matching } from "./categories";

const effect = (name: string, category: string | null = null, description: string | null = null) => ({
  name,
  category,
  description,
});

describe("byCategory", () => {
  it("keeps the order of the effects, and puts those without a category last", () => {
    const found = byCategory([effect("a"), effect("b", "Video"), effect("c", "Cats"), effect("d", "Video")]);
    expect(found.map(([category, effects]) => [category, effects.map((each) => each.name)])).toEqual([
      ["Video", ["b", "d"]],
      ["Cats", ["c"]],
      [null, ["a"]],
    ]);
  });
});

describe("matching", () => {
  it("searches name, description and category for all words", () => {
    const all = [effect("Rain", "Video", "Adds rain to a clip."), effect("Snow", "Video"), effect("Cat")];
    const names = (words: string) => matching(all, words).map((each) => each.name);
    expect(names("video")).toEqual(["Rain", "Snow"]);
    expect(names("CLIP rain")).toEqual(["Rain"]);
    expect(names(" ")).toEqual(["Rain", "Snow", "Cat"]);
  });
});
