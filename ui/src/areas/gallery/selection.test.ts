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

describe("selection", () => {
  test("toggles an output", () => {
    const one = toggleSelected(NONE, "b");
    expect(ids(one)).toBe("b");
    expect(ids(toggleSelected(one, "b"))).toBe("");
  });

  test("extends from the last touched output in both directions", () => {
    const start = toggleSelected(toggleSelected(NONE, "a"), "c");
    expect(ids(extendSelection(start, ORDER, "e"))).toBe("acde");
    expect(ids(extendSelection(toggleSelected(NONE, "d"), ORDER, "b"))).toBe("bcd");
    expect(ids(extendSelection(extendSelection(toggleSelected(NONE, "c"), ORDER, "d"), ORDER, "a"))).toBe("abcd");
  });

  test("selects one output without a start", () => expect(ids(extendSelection(NONE, ORDER, "c"))).toBe("c"));

  test("drops outputs that no longer exist", () => {
    expect(ids(keepExisting(selectAllOf(ORDER), (id) => id !== "b"))).toBe("acde");
    const some = toggleSelected(NONE, "a");
    expect(keepExisting(some, () => true)).toBe(some);
  });

  test("formats and parses the URL value", () => {
    expect(formatSelection(toggleSelected(NONE, "b"), 5)).toBe("b");
    expect(formatSelection(selectAllOf(ORDER), 5)).toBe("all");
    expect(formatSelection(NONE, 5)).toBeUndefined();
    expect(ids(parseSelection("all", ORDER))).toBe("abcde");
    expect(ids(parseSelection("b,d", ORDER))).toBe("bd");
  });

  test("does not write long selections to the URL", () => {
    const long = Array.from({ length: 300 }, (_each, at) => `id${at}`);
    expect(formatSelection(selectAllOf(long), 301)).toBeUndefined();
  });
});
