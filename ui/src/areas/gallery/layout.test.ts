import { describe, expect, test } from "vitest";
import type { InputValue } from "@/api/types";
import { gallery } from "@/texts/gallery";
import { findDifferences } from "./differences";
import {
  computeLayout,
  type Group,
  keepScroll,
  neighborOf,
  prependOutputs,
  removeOutputs,
  visibleRows,
} from "./layout";
import { clampView, FIT, fitScale, zoomBy } from "./ZoomPane";

const group = (key: string, ...ratios: number[]): Group => ({
  key,
  name: key,
  ids: ratios.map((_each, index) => `${key}${index}`),
  ratios,
});
const MEASURES = { width: 1000, rowHeight: 200, gap: 10, headingHeight: 40 };
const many = (key: string, count: number) =>
  group(key, ...Array.from({ length: count }, (_each, at) => 60 + (at % 9) * 20));

describe("gallery layout", () => {
  test("fills rows and keeps aspect ratios", () => {
    const layout = computeLayout([many("a", 100)], MEASURES);
    for (const { first, end, height } of layout.rows.slice(0, -1)) {
      const last = end - 1;
      expect((layout.left[last] ?? 0) + (layout.widths[last] ?? 0)).toBeCloseTo(1000, 0);
      expect((layout.widths[first] ?? 0) / height).toBeCloseTo((60 + (first % 9) * 20) / 100, 2);
      expect(height).toBeGreaterThan(120);
      expect(height).toBeLessThan(330);
    }
  });

  test("does not stretch a short last row", () => {
    const layout = computeLayout([group("a", 100)], MEASURES);
    expect(layout.rows[0]?.height).toBe(200);
  });

  test("clamps extreme aspect ratios and has a default", () => {
    const layout = computeLayout([group("a", 5000, 1, 0)], MEASURES);
    const [wide, narrow, unknown] = layout.widths;
    const heights = layout.rows.map((each) => each.height);
    expect((wide ?? 0) / (heights[0] ?? 1)).toBeLessThanOrEqual(3.001);
    expect(narrow).toBeGreaterThan(40);
    expect(unknown).toBeGreaterThan(0);
  });

  test("starts a new row for each group", () => {
    const layout = computeLayout([group("a", 100, 100), group("b", 100)], MEASURES);
    expect(layout.headings.map((each) => each.key)).toEqual(["a", "b"]);
    expect(layout.rows).toHaveLength(2);
    expect(layout.rows[1]?.top).toBe((layout.headings[1]?.top ?? 0) + 40);
  });

  test("finds visible rows of 20,000 outputs", () => {
    const layout = computeLayout([many("a", 20_000)], MEASURES);
    const [first, end] = visibleRows(layout.rows, 500_000, 501_000);
    expect(end - first).toBeGreaterThan(3);
    expect(end - first).toBeLessThan(9);
    expect((layout.rows[first]?.top ?? 0) + (layout.rows[first]?.height ?? 0)).toBeGreaterThan(500_000);
    expect(visibleRows(layout.rows, layout.height + 1, layout.height + 2)).toEqual([
      layout.rows.length,
      layout.rows.length,
    ]);
  });

  test("moves to neighbors and stops at edges", () => {
    const layout = computeLayout([group("a", 100, 100, 100, 100, 100, 100, 100, 100, 100, 100)], MEASURES);
    const across = layout.rows[0]?.end ?? 0;
    expect(neighborOf(layout, 0, "right")).toBe(1);
    expect(neighborOf(layout, 0, "left")).toBe(0);
    expect(neighborOf(layout, 1, "down")).toBe(across + 1);
    expect(neighborOf(layout, across + 1, "up")).toBe(1);
    expect(neighborOf(layout, 9, "right")).toBe(9);
  });

  test("keeps visible outputs in place when new ones arrive", () => {
    const before = [many("today", 300)];
    const after = prependOutputs(before, [{ id: "new", key: "today", ratio: 300 }]);
    const [old, next] = [computeLayout(before, MEASURES), computeLayout(after, MEASURES)];
    const scrolled = (old.rows[20]?.top ?? 0) + 30;
    const moved = keepScroll(old, next, scrolled);
    const seen = old.ids[old.rows[20]?.first ?? 0] as string;
    const row = next.rows.find(
      (each) => each.first <= (next.placeOf.get(seen) ?? 0) && each.end > (next.placeOf.get(seen) ?? 0),
    );
    expect(moved - (row?.top ?? 0)).toBeCloseTo(30);
  });

  test("prepends new outputs to their group", () => {
    const found = prependOutputs(
      [group("mon", 100)],
      [
        { id: "c", key: "tue", ratio: 50 },
        { id: "b", key: "tue", ratio: 70 },
        { id: "a", key: "mon", ratio: 90 },
      ],
    );
    expect(found.map((each) => [each.key, each.ids, each.ratios])).toEqual([
      ["tue", ["c", "b"], [50, 70]],
      ["mon", ["a", "mon0"], [90, 100]],
    ]);
  });

  test("removes deleted outputs and empty groups", () => {
    const found = removeOutputs([group("a", 100), group("b", 100, 50)], new Set(["a0", "b0"]));
    expect(found).toEqual([{ key: "b", name: "b", ids: ["b1"], ratios: [50] }]);
  });
});

describe("zoom", () => {
  test("is relative to the pixels of the image", () => {
    const fit = fitScale({ width: 1200, height: 844 }, { width: 512, height: 512 });
    expect(gallery.lightbox.zoom(1, fit)).toBe("Fit · 165 %");
    expect(gallery.lightbox.zoom(1 / (fit as number), fit)).toBe("100 %");
    expect(gallery.lightbox.zoom(1, null)).toBe("Fit");
  });

  test("stops zooming out at the actual size of a small image", () => {
    const own = clampView({ ...FIT, scale: 0.6 });
    expect(own).toEqual({ scale: 0.6, x: 0, y: 0 });
    expect(zoomBy(own, 0.5).scale).toBe(0.6);
    expect(zoomBy(FIT, 0.5).scale).toBe(1);
  });
});

test("finds values that differ", () => {
  const value = (key: string, given: unknown) => ({
    key,
    label: key.toUpperCase(),
    value: given as InputValue["value"],
  });
  const a = [value("steps", 20), value("seed", 18446744073709551614n), value("cfg", 7)];
  const b = [value("steps", 30), value("seed", 18446744073709551615n), value("cfg", 7)];
  expect(findDifferences([a, b])).toEqual([
    { label: "STEPS", values: ["20", "30"] },
    { label: "SEED", values: ["18446744073709551614", "18446744073709551615"] },
  ]);
  expect(findDifferences([a, a])).toEqual([]);
});
