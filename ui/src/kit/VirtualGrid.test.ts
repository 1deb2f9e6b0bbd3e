import { expect, it } from "vitest";
import { linesOf } from "./VirtualGrid";

it("a grid breaks each section into rows and numbers its items across sections", () => {
  const lines = linesOf(
    [
      { key: "x", heading: "X", items: [1, 2, 3] },
      { key: "y", items: [4] },
    ],
    2,
  );
  expect(lines.map((each) => ("items" in each ? [each.first, ...each.items] : each.heading))).toEqual([
    "X",
    [0, 1, 2],
    [2, 3],
    [3, 4],
  ]);
});
