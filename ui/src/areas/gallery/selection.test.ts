import { describe, expect, test } from "vitest";
import {
  extendSelection,
  formatSelection,
  keepExisting,
  NONE,
  parseSelection,
  selectAllOf,
  sortByOrder,
  toggleSelected,
} from "./selection";

const ORDER = ["a", "b", "c", "d", "e"];
const ids = ({ ids: found }: { ids: ReadonlySet<string> }) => sortByOrder(found, ORDER).join("");

describe("the selection", () => {
  test("one is selected, and not any more", () => {
    const one = toggleSelected(NONE, "b");
    expect(ids(one)).toBe("b");
    expect(ids(toggleSelected(one, "b"))).toBe("");
  });

  test("a range goes from the one touched last, in both directions, and keeps the others", () => {
    const start = toggleSelected(toggleSelected(NONE, "a"), "c");
    expect(ids(extendSelection(start, ORDER, "e"))).toBe("acde");
    expect(ids(extendSelection(toggleSelected(NONE, "d"), ORDER, "b"))).toBe("bcd");
    expect(ids(extendSelection(extendSelection(toggleSelected(NONE, "c"), ORDER, "d"), ORDER, "a"))).toBe("abcd");
  });

  test("a range from nowhere is the one alone", () => expect(ids(extendSelection(NONE, ORDER, "c"))).toBe("c"));

  test("what is gone is not selected", () => {
    expect(ids(keepExisting(selectAllOf(ORDER), (id) => id !== "b"))).toBe("acde");
    const some = toggleSelected(NONE, "a");
    expect(keepExisting(some, () => true)).toBe(some);
  });

  test("an address holds a selection, and all of it by a word", () => {
    expect(formatSelection(toggleSelected(NONE, "b"), 5)).toBe("b");
    expect(formatSelection(selectAllOf(ORDER), 5)).toBe("all");
    expect(formatSelection(NONE, 5)).toBeUndefined();
    expect(ids(parseSelection("all", ORDER))).toBe("abcde");
    expect(ids(parseSelection("b,d", ORDER))).toBe("bd");
  });

  test("more than an address can hold is not written", () => {
    const long = Array.from({ length: 300 }, (_each, at) => `id${at}`);
    expect(formatSelection(selectAllOf(long), 301)).toBeUndefined();
  });
});
