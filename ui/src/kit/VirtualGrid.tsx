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
  /** The smallest width of a tile; as many as fit stand in a row. */
  width: number;
  /** Of a tile: height by width. */
  ratio?: number;
  gap?: number;
  padding?: number;
  onEnd?: () => void;
  /** Told how many stand in a row: the arrow keys need it. */
  onColumns?: (columns: number) => void;
  name: string;
  className?: string;
  ref?: Ref<VirtualHandle>;
}

const HEADING_PX = 40;

type Line<T> = { key: string; heading: ReactNode } | { key: string; first: number; items: readonly T[] };

/** Tiles in rows, under headings: of tens of thousands, only those that can be seen are there. */
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
  const [room, setRoom] = useState(0);
  useEffect(() => {
    const element = scroll.current;
    if (!element) return;
    const observer = new ResizeObserver(() => setRoom(element.clientWidth - 2 * padding));
    observer.observe(element);
    return () => observer.disconnect();
  }, [padding]);
  const columns = Math.max(1, Math.floor((room + gap) / (width + gap)));
  const tile = (room - (columns - 1) * gap) / columns;
  useEffect(() => onColumns?.(columns), [columns, onColumns]);
  const lines = useMemo(() => linesOf(sections, columns), [sections, columns]);
  const rows = useVirtualizer({
    count: room > 0 ? lines.length : 0,
    getScrollElement: () => scroll.current,
    estimateSize: (index) => (isHeading(lines[index]) ? HEADING_PX : tile * ratio + gap),
    overscan: 4,
    paddingStart: padding / 2,
    paddingEnd: padding,
    getItemKey: (index) => lines[index]?.key ?? index,
  });
  // biome-ignore lint/correctness/useExhaustiveDependencies: rows are as high as their tiles are
  useEffect(() => rows.measure(), [tile, ratio, lines]);
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

const isHeading = <T,>(line: Line<T> | undefined): boolean => line !== undefined && "heading" in line;

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
