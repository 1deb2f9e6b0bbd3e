import { useVirtualizer, type Virtualizer } from "@tanstack/react-virtual";
import { type ReactNode, type Ref, useEffect, useImperativeHandle, useRef } from "react";
import { useLatest } from "@/lib/use-latest";
import { classes } from "./classes";
import styles from "./virtual.module.css";

export interface VirtualHandle {
  scrollTo: (index: number) => void;
}

interface VirtualListProps<T> {
  items: readonly T[];
  keyOf: (item: T) => string;
  children: (item: T, index: number) => ReactNode;
  /** Estimated height of an item. Rendered items are measured. */
  height: number;
  gap?: number;
  /** Called near the end of the list, to fetch more. */
  onEnd?: () => void;
  name: string;
  className?: string;
  ref?: Ref<VirtualHandle>;
}

/** A long list that renders only the visible items. It scrolls, so its parent needs a height. */
export function VirtualList<T>({
  items,
  keyOf,
  children,
  height,
  gap = 8,
  onEnd,
  name,
  className,
  ref,
}: VirtualListProps<T>) {
  const scroll = useRef<HTMLDivElement>(null);
  const rows = useVirtualizer({
    count: items.length,
    getScrollElement: () => scroll.current,
    estimateSize: () => height,
    gap,
    overscan: 6,
    getItemKey: (index) => {
      const item = items[index];
      return item === undefined ? index : keyOf(item);
    },
  });
  useImperativeHandle(ref, () => ({ scrollTo: (index) => rows.scrollToIndex(index, { align: "auto" }) }));
  useNearEnd(rows, items.length, onEnd);
  return (
    <div ref={scroll} className={classes(styles.scroll, className)} role="list" aria-label={name}>
      <div className={styles.inner} style={{ height: rows.getTotalSize() }}>
        {rows.getVirtualItems().map((row) => {
          const item = items[row.index];
          if (item === undefined) return null;
          return (
            <div
              key={row.key}
              ref={rows.measureElement}
              data-index={row.index}
              role="listitem"
              aria-setsize={items.length}
              aria-posinset={row.index + 1}
              className={styles.row}
              style={{ transform: `translateY(${row.start}px)` }}
            >
              {children(item, row.index)}
            </div>
          );
        })}
      </div>
    </div>
  );
}

const NEAR_END_ROWS = 5;

export function useNearEnd(rows: Virtualizer<HTMLDivElement, Element>, count: number, onEnd?: () => void): void {
  const last = rows.getVirtualItems().at(-1)?.index ?? -1;
  const latest = useLatest(onEnd);
  useEffect(() => {
    if (count && last >= count - NEAR_END_ROWS) latest.current?.();
  }, [last, count, latest]);
}
