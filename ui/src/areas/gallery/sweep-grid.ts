// The grid of a sweep: which output is in which cell. Pure functions.

import type { components } from "@/api/schema";

export type SweepGrid = components["schemas"]["SweepGrid"];
export type Axis = SweepGrid["axes"][number];

/** Indexes of the axes in columns and rows; null: without rows. */
export interface View {
  x: number;
  y: number | null;
  /** The chosen value of each other axis, by the index of the axis. */
  z: Readonly<Record<number, number>>;
}

/** The two axes that vary fastest. */
export const defaultView = (axes: readonly Axis[]): View => ({
  x: axes.length - 1,
  y: axes.length > 1 ? axes.length - 2 : null,
  z: {},
});

/** Swaps columns and rows if one of them takes the axis of the other. */
export function withAxis(view: View, side: "x" | "y", axis: number | null): View {
  if (side === "x") return axis === null ? view : { ...view, x: axis, y: view.y === axis ? view.x : view.y };
  if (axis === view.x) return view.y === null ? view : { ...view, x: view.y, y: axis };
  return { ...view, y: axis };
}

/** Axes that are neither columns nor rows. */
export const otherAxes = (axes: readonly Axis[], view: View): number[] =>
  axes.flatMap((_each, index) => (index === view.x || index === view.y ? [] : [index]));

/** The number of the item with these values. The last axis varies fastest, as on the server. */
export const itemAt = (axes: readonly Axis[], places: readonly number[]): number =>
  axes.reduce((item, axis, index) => item * axis.values.length + (places[index] ?? 0), 0);

export function cellAt({ axes, cells }: SweepGrid, view: View, column: number, row: number): string | null {
  const places = axes.map((_each, index) =>
    index === view.x ? column : index === view.y ? row : (view.z[index] ?? 0),
  );
  return cells[itemAt(axes, places)] ?? null;
}

const rowsOf = (axes: readonly Axis[], view: View): readonly string[] =>
  view.y === null ? [""] : (axes[view.y]?.values ?? []);

/** The outputs of a slice by row and column, at most `most` of each. */
export const cellsOf = (grid: SweepGrid, view: View, most: number): (string | null)[][] =>
  rowsOf(grid.axes, view)
    .slice(0, most)
    .map((_row, row) =>
      (grid.axes[view.x]?.values ?? []).slice(0, most).map((_column, column) => cellAt(grid, view, column, row)),
    );

/** All values of the other axes: the slices of a grid of three and more axes. */
export function slicesOf(axes: readonly Axis[], view: View): View[] {
  return otherAxes(axes, view).reduce<View[]>(
    (views, index) =>
      views.flatMap((each) =>
        (axes[index]?.values ?? []).map((_value, place) => ({ ...each, z: { ...each.z, [index]: place } })),
      ),
    [{ ...view, z: {} }],
  );
}

export const sliceNames = (axes: readonly Axis[], view: View): [name: string, value: string][] =>
  otherAxes(axes, view).map((index) => {
    const axis = axes[index];
    return [axis?.name ?? "", axis?.values[view.z[index] ?? 0] ?? ""];
  });

// Pictures of a sweep may differ in aspect ratio. Each is shown uncropped.
const [MIN_RATIO, MAX_RATIO] = [0.75, 1.6];

/** The aspect ratio of all cells, taken from the first picture. */
export const cellRatio = (first: { width?: number | null; height?: number | null } | undefined): number =>
  Math.min(MAX_RATIO, Math.max(MIN_RATIO, first?.width && first.height ? first.width / first.height : 1));

export interface PictureSize {
  cell: number;
  width: number;
  height: number;
}

export const LABEL_WIDTH = 180;
export const LINE = 28;
/** Between pictures, and after the last one. */
export const GAP = 8;
const [MAX_SIDE, MAX_PIXELS] = [8192, 40_000_000];
const [MIN_CELL, MAX_CELL] = [48, 384];

/** The picture with the largest cells that fit into the limits; null if even the smallest cells do not fit. */
export function pictureSize(columns: number, rows: number, slices: number, ratio: number): PictureSize | null {
  const of = (cell: number): PictureSize => ({
    cell,
    width: LABEL_WIDTH + columns * (cell + GAP),
    height: LINE + slices * (2 * LINE + rows * (Math.round(cell / ratio) + GAP)),
  });
  const fits = ({ width, height }: PictureSize) =>
    width <= MAX_SIDE && height <= MAX_SIDE && width * height <= MAX_PIXELS;
  for (let cell = MAX_CELL; cell >= MIN_CELL; cell -= 16) if (fits(of(cell))) return of(cell);
  return null;
}
