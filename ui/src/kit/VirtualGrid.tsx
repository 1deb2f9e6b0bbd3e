import { useVirtualizer } from "@tanstack/react-virtual";
import { type ReactNode, type Ref, useEffect, useImperativeHandle, useMemo, useRef, useState } from "react";
import { classes } from "./classes";
import { useNearEnd, type VirtualHandle } from "./VirtualList";
import styles from "./virtual.module.css";

export interface GridSection<T> {
  key: string;
  heading?: ReactNode;
  items: readonly T[];
}

interface VirtualGridProps<T> {
  sections: readonly GridSection<T>[];
  keyOf: (item: T) => string;
  children: (item: T, index: number) => ReactNode;
  /** Minimum width of a tile. A row holds as many as fit. */
  width: number;
  /** Height of a tile divided by its width. */
  ratio?: number;
  gap?: number;
  padding?: number;
  onEnd?: () => void;
  /** Gets the number of tiles per row, which arrow keys need. */
  onColumns?: (columns: number) => void;
  name: string;
  className?: string;
  ref?: Ref<VirtualHandle>;
}

const HEADING_PX = 40;

type Line<T> = { key: string; heading: ReactNode } | { key: string; first: number; items: readonly T[] };

/** Tiles in rows, under headings. Renders only the visible rows of tens of thousands of tiles. */
export function VirtualGrid<T>(props: VirtualGridProps<T>) {
  const {
    sections,
    keyOf,
    children,
    width,
    ratio = 1,
    gap = 8,
    padding = 20,
    onEnd,
    onColumns,
    name,
    className,
    ref,
  } = props;
  const scroll = useRef<HTMLDivElement>(null);
  const [availableWidth, setAvailableWidth] = useState(0);
  useEffect(() => {
    const element = scroll.current;
    if (!element) return;
    const observer = new ResizeObserver(() => setAvailableWidth(element.clientWidth - 2 * padding));
    observer.observe(element);
    return () => observer.disconnect();
  }, [padding]);
  const columns = Math.max(1, Math.floor((availableWidth + gap) / (width + gap)));
  const tile = (availableWidth - (columns - 1) * gap) / columns;
  useEffect(() => onColumns?.(columns), [columns, onColumns]);
  const lines = useMemo(() => linesOf(sections, columns), [sections, columns]);
  const rowHeight = tile * ratio + gap;
  const heights = useMemo(() => lines.map((line) => ("heading" in line ? HEADING_PX : rowHeight)), [lines, rowHeight]);
  const rows = useVirtualizer({
    count: availableWidth > 0 ? lines.length : 0,
    getScrollElement: () => scroll.current,
    estimateSize: (index) => heights[index] ?? rowHeight,
    overscan: 4,
    paddingStart: padding / 2,
    paddingEnd: padding,
    getItemKey: (index) => lines[index]?.key ?? index,
  });
  useEffect(() => {
    if (heights.length) rows.measure();
  }, [rows, heights]);
  useImperativeHandle(ref, () => ({
    scrollTo: (index) => {
      const line = lines.findIndex((each) => "items" in each && index < each.first + each.items.length);
      if (line >= 0) rows.scrollToIndex(line, { align: "auto" });
    },
  }));
  useNearEnd(rows, lines.length, onEnd);
  return (
    <div ref={scroll} className={classes(styles.scroll, className)} role="list" aria-label={name}>
      <div className={styles.inner} style={{ height: rows.getTotalSize() }}>
        {rows.getVirtualItems().map((row) => {
          const line = lines[row.index];
          if (!line) return null;
          const place = { transform: `translateY(${row.start}px)`, padding: `0 ${padding}px` };
          if ("heading" in line) {
            return (
              <div key={row.key} className={styles.row} style={{ ...place, height: HEADING_PX }} role="listitem">
                {line.heading}
              </div>
            );
          }
          return (
            <div
              key={row.key}
              role="presentation"
              className={classes(styles.row, styles.columns)}
              style={{
                ...place,
                gap,
                gridTemplateColumns: `repeat(${columns}, ${tile}px)`,
                gridAutoRows: `${tile * ratio}px`,
              }}
            >
              {line.items.map((item, index) => (
                <div key={keyOf(item)} role="listitem">
                  {children(item, line.first + index)}
                </div>
              ))}
            </div>
          );
        })}
      </div>
    </div>
  );
}

export function linesOf<T>(sections: readonly GridSection<T>[], columns: number): Line<T>[] {
  const lines: Line<T>[] = [];
  let first = 0;
  for (const { key, heading, items } of sections) {
    if (heading !== undefined) lines.push({ key: `${key}-heading`, heading });
    for (let at = 0; at < items.length; at += columns) {
      const some = items.slice(at, at + columns);
      lines.push({ key: `${key}-${at}`, first, items: some });
      first += some.length;
    }
  }
  return lines;
}
