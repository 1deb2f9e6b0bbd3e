import { expect, it } from "vitest";
import {
  cellsOf,
  defaultView,
  itemAt,
  pictureSize,
  type SweepGrid,
  sliceNames,
  slicesOf,
  withAxis,
} from "./sweep-grid";

const axis = (key: string, ...values: string[]) => ({ key, name: key.toUpperCase(), values });
const grid: SweepGrid = {
  axes: [axis("z", "p", "q"), axis("y", "1", "2", "3"), axis("x", "a", "b")],
  cells: Array.from({ length: 12 }, (_each, item) => (item === 5 ? null : `o${item}`)),
};

it("shows the two fastest axes as rows and columns", () => {
  expect(cellsOf(grid, defaultView(grid.axes), 40)).toEqual([
    ["o0", "o1"],
    ["o2", "o3"],
    ["o4", null],
  ]);
});

it("shows the chosen value of the third axis", () => {
  const view = { ...defaultView(grid.axes), z: { 0: 1 } };
  expect(cellsOf(grid, view, 40)[0]).toEqual(["o6", "o7"]);
  expect(sliceNames(grid.axes, view)).toEqual([["Z", "q"]]);
});

it("shows one axis as one row", () => {
  const one = { axes: [axis("x", "a", "b", "c")], cells: ["o0", "o1", "o2"] };
  expect(cellsOf(one, defaultView(one.axes), 2)).toEqual([["o0", "o1"]]);
});

it("swaps the axes if columns take the axis of the rows", () => {
  const view = defaultView(grid.axes);
  expect(withAxis(view, "x", 1)).toMatchObject({ x: 1, y: 2 });
  expect(withAxis(view, "y", 2)).toMatchObject({ x: 1, y: 2 });
  expect(withAxis(view, "y", 0)).toMatchObject({ x: 2, y: 0 });
});

it("numbers items as the server does", () => {
  expect(itemAt(grid.axes, [1, 2, 0])).toBe(10);
});

it("has a slice for each value of the other axes", () => {
  expect(slicesOf(grid.axes, defaultView(grid.axes)).map((each) => each.z)).toEqual([{ 0: 0 }, { 0: 1 }]);
});

it("bounds the picture", () => {
  expect(pictureSize(3, 2, 1, 1)).toEqual({ cell: 384, width: 1356, height: 868 });
  const large = pictureSize(60, 60, 1, 1);
  expect(large && large.width * large.height).toBeLessThanOrEqual(40_000_000);
  expect(pictureSize(100, 100, 3, 1)).toBeNull();
});
