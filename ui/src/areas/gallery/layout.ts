// Justified rows that keep aspect ratios. The layout needs no fetched output, so nothing moves while scrolling.

export interface Group {
  key: string;
  name: string;
  ids: readonly string[];
  /** Width / height in hundredths; 0 if unknown. */
  ratios: readonly number[];
}

export interface Row {
  top: number;
  height: number;
  /** Indexes into all outputs. */
  first: number;
  end: number;
}

export interface Heading {
  top: number;
  group: number;
  key: string;
  name: string;
  count: number;
}

export interface Layout {
  width: number;
  height: number;
  rows: readonly Row[];
  headings: readonly Heading[];
  ids: readonly string[];
  placeOf: ReadonlyMap<string, number>;
  left: Float32Array;
  widths: Float32Array;
}

export interface Measures {
  width: number;
  /** Target height. */
  rowHeight: number;
  gap: number;
  headingHeight: number;
}

const UNKNOWN = 1.25;
const MIN_RATIO = 0.45;
const MAX_RATIO = 3;
/** A nearly full last row is stretched; a single output is not. */
const NEARLY_FULL = 0.8;

export const aspectOf = (ratio: number): number =>
  ratio > 0 ? Math.min(MAX_RATIO, Math.max(MIN_RATIO, ratio / 100)) : UNKNOWN;

export function computeLayout(groups: readonly Group[], { width, rowHeight, gap, headingHeight }: Measures): Layout {
  const count = groups.reduce((sum, each) => sum + each.ids.length, 0);
  const left = new Float32Array(count);
  const widths = new Float32Array(count);
  const ids: string[] = [];
  const rows: Row[] = [];
  const headings: Heading[] = [];
  const placeOf = new Map<string, number>();
  let top = 0;
  let place = 0;

  for (const [number, group] of groups.entries()) {
    headings.push({ top, group: number, key: group.key, name: group.name, count: group.ids.length });
    top += headingHeight;
    const shapes = group.ratios.map(aspectOf);
    let start = 0;
    while (start < shapes.length) {
      const { end, height } = nextRow(shapes, start, width, rowHeight, gap);
      let x = 0;
      for (let each = start; each < end; each += 1) {
        const wide = (shapes[each] ?? UNKNOWN) * height;
        left[place + each] = x;
        widths[place + each] = wide;
        x += wide + gap;
      }
      rows.push({ top, height, first: place + start, end: place + end });
      top += height + gap;
      start = end;
    }
    for (const id of group.ids) {
      placeOf.set(id, ids.length);
      ids.push(id);
    }
    place = ids.length;
    top += gap;
  }
  return { width, height: top, rows, headings, ids, placeOf, left, widths };
}

function nextRow(shapes: readonly number[], start: number, width: number, wanted: number, gap: number) {
  let sum = 0;
  for (let end = start; end < shapes.length; end += 1) {
    const shape = shapes[end] ?? UNKNOWN;
    const filled = heightOf(sum + shape, end - start + 1, width, gap);
    if (filled <= wanted) {
      // choose the height that is closer to the target
      const removeOutputs = end > start ? heightOf(sum, end - start, width, gap) : Number.POSITIVE_INFINITY;
      if (removeOutputs - wanted < wanted - filled) return { end, height: removeOutputs };
      return { end: end + 1, height: filled };
    }
    sum += shape;
  }
  const filled = heightOf(sum, shapes.length - start, width, gap);
  return { end: shapes.length, height: wanted / filled >= NEARLY_FULL ? filled : wanted };
}

const heightOf = (sum: number, count: number, width: number, gap: number): number =>
  Math.max(1, (width - gap * (count - 1)) / sum);

/** Rows between two scroll positions. */
export function visibleRows(rows: readonly Row[], from: number, to: number): [first: number, end: number] {
  const first = firstIndex(rows, (row) => row.top + row.height > from);
  return [
    first,
    Math.max(
      first,
      firstIndex(rows, (row) => row.top >= to),
    ),
  ];
}

/** Binary search for the first match. */
function firstIndex<T>(items: readonly T[], holds: (item: T) => boolean): number {
  let low = 0;
  let high = items.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(items[middle] as T)) high = middle;
    else low = middle + 1;
  }
  return low;
}

export const rowOf = (layout: Layout, place: number): number => firstIndex(layout.rows, (row) => row.end > place);

export type Step = "left" | "right" | "up" | "down";

/** The neighbor in a direction; the output itself at the edges. */
export function neighborOf(layout: Layout, place: number, step: Step): number {
  if (step === "left") return Math.max(0, place - 1);
  if (step === "right") return Math.min(layout.ids.length - 1, place + 1);
  const row = layout.rows[rowOf(layout, place) + (step === "up" ? -1 : 1)];
  if (!row) return place;
  const middle = middleOf(layout, place);
  let best = row.first;
  for (let each = row.first; each < row.end; each += 1) {
    if (Math.abs(middleOf(layout, each) - middle) < Math.abs(middleOf(layout, best) - middle)) best = each;
  }
  return best;
}

const middleOf = (layout: Layout, place: number): number => (layout.left[place] ?? 0) + (layout.widths[place] ?? 0) / 2;

/** Scroll position that keeps the visible outputs in place after a change above them. */
export function keepScroll(before: Layout, after: Layout, scrolled: number): number {
  for (let row = visibleRows(before.rows, scrolled, Number.POSITIVE_INFINITY)[0]; row < before.rows.length; row += 1) {
    const { top, first, end } = before.rows[row] as Row;
    for (let place = first; place < end; place += 1) {
      const found = after.placeOf.get(before.ids[place] as string);
      if (found === undefined) continue;
      return (after.rows[rowOf(after, found)]?.top ?? 0) + scrolled - top;
    }
  }
  return scrolled;
}

/** Prepends new outputs to their groups, which may be new. */
export function prependOutputs(
  groups: readonly Group[],
  found: readonly { id: string; key: string; ratio: number }[],
): readonly Group[] {
  const next = [...groups];
  // prepend in reverse: the newest ends up first
  for (const each of found.toReversed()) {
    const at = next.findIndex((group) => group.key === each.key);
    const group = next[at];
    if (group) next[at] = { ...group, ids: [each.id, ...group.ids], ratios: [each.ratio, ...group.ratios] };
    else next.unshift({ key: each.key, name: each.key, ids: [each.id], ratios: [each.ratio] });
  }
  return next;
}

export const removeOutputs = (groups: readonly Group[], gone: ReadonlySet<string>): readonly Group[] =>
  groups
    .map((group) => {
      if (!group.ids.some((id) => gone.has(id))) return group;
      const left = group.ids.map((_id, index) => index).filter((index) => !gone.has(group.ids[index] as string));
      return {
        ...group,
        ids: left.map((index) => group.ids[index] as string),
        ratios: left.map((index) => group.ratios[index] ?? 0),
      };
    })
    .filter((group) => group.ids.length);
