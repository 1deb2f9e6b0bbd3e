// Lays out the grid for its width and finds the rows in view. Scroll positions are kept per view.

import { type RefObject, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import { items } from "./item-store";
import { computeLayout, type Group, keepScroll, type Layout, type Measures, visibleRows } from "./layout";

/** Pixels rendered above and below the visible part. */
const OVERSCAN = 700;
const NARROW = 560;
const AT_TOP = 24;

const measuresOf = (width: number, rowHeight: number): Measures => {
  const isNarrow = width < NARROW;
  return { width, rowHeight: isNarrow ? rowHeight * 0.62 : rowHeight, gap: isNarrow ? 4 : 8, headingHeight: 44 };
};

const scrollPositions = new Map<string, number>();

interface VisibleRowsOptions {
  scroller: RefObject<HTMLDivElement | null>;
  inner: RefObject<HTMLDivElement | null>;
  groups: readonly Group[];
  /** Key of the shown view; another view starts at its own scroll position. */
  viewKey: string;
  rowHeight: number;
  onScrolled: (isAtTop: boolean) => void;
}

export function useVisibleRows({ scroller, inner, groups, viewKey, rowHeight, onScrolled }: VisibleRowsOptions) {
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const element = inner.current as HTMLDivElement;
    const measure = () => setWidth(Math.floor(element.clientWidth));
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, [inner]);
  const layout = useMemo(() => computeLayout(groups, measuresOf(width || 1000, rowHeight)), [groups, width, rowHeight]);

  const [range, setRange] = useState<readonly [number, number]>([0, 0]);
  const latestLayout = useRef(layout);
  const updateRange = useCallback(() => {
    const element = scroller.current;
    if (!element) return;
    const { scrollTop, clientHeight } = element;
    const next = visibleRows(latestLayout.current.rows, scrollTop - OVERSCAN, scrollTop + clientHeight + OVERSCAN);
    setRange((now) => (now[0] === next[0] && now[1] === next[1] ? now : next));
  }, [scroller]);

  const before = useRef<{ layout: Layout; viewKey: string } | null>(null);
  useLayoutEffect(() => {
    const element = scroller.current as HTMLDivElement;
    const last = before.current;
    latestLayout.current = layout;
    if (!width) return;
    if (last?.viewKey !== viewKey) element.scrollTop = scrollPositions.get(viewKey) ?? 0;
    else if (last.layout !== layout && element.scrollTop > AT_TOP) {
      element.scrollTop = keepScroll(last.layout, layout, element.scrollTop);
    }
    before.current = { layout, viewKey };
    updateRange();
  }, [layout, viewKey, width, updateRange, scroller]);

  useEffect(() => {
    const element = scroller.current as HTMLDivElement;
    let frame = 0;
    const scrolled = () => {
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        scrollPositions.set(viewKey, element.scrollTop);
        updateRange();
        onScrolled(element.scrollTop <= AT_TOP);
      });
    };
    const observer = new ResizeObserver(updateRange);
    observer.observe(element);
    element.addEventListener("scroll", scrolled, { passive: true });
    return () => {
      observer.disconnect();
      cancelAnimationFrame(frame);
      element.removeEventListener("scroll", scrolled);
    };
  }, [viewKey, updateRange, onScrolled, scroller]);

  const rows = layout.rows.slice(range[0], range[1]);
  const first = rows[0]?.first ?? 0;
  const end = rows.at(-1)?.end ?? 0;
  useEffect(() => items.want(layout.ids.slice(first, end)), [layout, first, end]);

  return {
    width,
    layout,
    rows,
    /** Index of the first output in view, and the index after the last one. */
    first,
    end,
    updateRange,
    /** Renders again even if the rows do not change. */
    rerender: useCallback(() => setRange((now) => [...now]), []),
  };
}
