import { describe, expect, test } from "vitest";
import { everything, extended, inOrder, NONE, read, remaining, toggled, written } from "./selection";

const ORDER = ["a", "b", "c", "d", "e"];
const ids = ({ ids: found }: { ids: ReadonlySet<string> }) => inOrder(found, ORDER).join("");

describe("the selection", () => {
  test("one is selected, and not any more", () => {
    const one = toggled(NONE, "b");
    expect(ids(one)).toBe("b");
    expect(ids(toggled(one, "b"))).toBe("");
  });

  test("a range goes from the one touched last, in both directions, and keeps the others", () => {
    const start = toggled(toggled(NONE, "a"), "c");
    expect(ids(extended(start, ORDER, "e"))).toBe("acde");
    expect(ids(extended(toggled(NONE, "d"), ORDER, "b"))).toBe("bcd");
    expect(ids(extended(extended(toggled(NONE, "c"), ORDER, "d"), ORDER, "a"))).toBe("abcd");
  });

  test("a range from nowhere is the one alone", () => expect(ids(extended(NONE, ORDER, "c"))).toBe("c"));

  test("what is gone is not selected", () => {
    expect(ids(remaining(everything(ORDER), (id) => id !== "b"))).toBe("acde");
    const some = toggled(NONE, "a");
    expect(remaining(some, () => true)).toBe(some);
  });

  test("an address holds a selection, and all of it by a word", () => {
    expect(written(toggled(NONE, "b"), 5)).toBe("b");
    expect(written(everything(ORDER), 5)).toBe("all");
    expect(written(NONE, 5)).toBeUndefined();
    expect(ids(read("all", ORDER))).toBe("abcde");
    expect(ids(read("b,d", ORDER))).toBe("bd");
  });

  test("more than an address can hold is not written", () => {
    const long = Array.from({ length: 300 }, (_each, at) => `id${at}`);
    expect(written(everything(long), 301)).toBeUndefined();
  });
});
