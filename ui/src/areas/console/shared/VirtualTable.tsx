// biome-ignore-all lint/a11y/useFocusableInteractive: rows and cells of a table are not focusable, but their content is
// A table for thousands of rows: only visible rows are rendered. `j` and `k` move, `Enter` opens.

import { useVirtualizer } from "@tanstack/react-virtual";
import { ArrowDown, ArrowUp } from "lucide-react";
import { type CSSProperties, type MouseEvent, type ReactNode, useRef } from "react";
import { classes } from "@/kit";
import { useNearEnd } from "@/kit/VirtualList";
import { useKeys } from "@/lib/keyboard";
import { common } from "@/texts/common";
import styles from "./VirtualTable.module.css";

export interface Column<T> {
  id: string;
  name: string;
  /** CSS grid track, such as `minmax(120px, 1fr)`. */
  width: string;
  show: (row: T) => ReactNode;
  isRightAligned?: boolean;
  /** Hidden on narrower screens. */
  from?: "medium" | "wide";
  isSortable?: boolean;
}

interface VirtualTableProps<T> {
  name: string;
  rows: readonly T[];
  columns: readonly Column<T>[];
  keyOf: (row: T) => string;
  /** Key of the row that shortcuts act on. */
  current: string | null;
  onCurrent: (row: T) => void;
  onOpen: (row: T) => void;
  /** `name` or `-name`. */
  sort?: string | undefined;
  onSort?: (sort: string) => void;
  onEnd?: () => void;
  rowHeight?: number;
}

const ROW = 48;

const tracks = <T,>(columns: readonly Column<T>[], without: readonly string[]): string =>
  columns
    .filter((each) => !without.includes(each.from ?? ""))
    .map((each) => each.width)
    .join(" ");

export function VirtualTable<T>({
  name,
  rows,
  columns,
  keyOf,
  current,
  onCurrent,
  onOpen,
  sort = "",
  onSort,
  onEnd,
  rowHeight = ROW,
}: VirtualTableProps<T>) {
  const scroll = useRef<HTMLDivElement>(null);
  const list = useVirtualizer({
    count: rows.length,
    getScrollElement: () => scroll.current,
    estimateSize: () => rowHeight,
    overscan: 8,
    getItemKey: (index) => {
      const row = rows[index];
      return row === undefined ? index : keyOf(row);
    },
  });
  useNearEnd(list, rows.length, onEnd);
  const step = (by: 1 | -1) => {
    const at = rows.findIndex((each) => keyOf(each) === current);
    const to = at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + by));
    const row = rows[to];
    if (row === undefined) return;
    onCurrent(row);
    list.scrollToIndex(to, { align: "auto" });
  };
  useKeys([
    { keys: "j", name: common.keys.next, group: name, run: () => step(1) },
    { keys: "k", name: common.keys.previous, group: name, run: () => step(-1) },
    {
      keys: "Enter",
      name: common.details,
      group: name,
      run: (event) => {
        // Enter presses the focused link or button
        if (event.target instanceof HTMLElement && event.target.closest("a, button")) {
          event.target.closest<HTMLElement>("a, button")?.click();
          return;
        }
        const row = rows.find((each) => keyOf(each) === current);
        if (row !== undefined) onOpen(row);
      },
    },
  ]);
  const widths = {
    "--wide": tracks(columns, []),
    "--medium": tracks(columns, ["wide"]),
    "--narrow": tracks(columns, ["wide", "medium"]),
    "--row": `${rowHeight}px`,
  } as CSSProperties;
  return (
    <div
      ref={scroll}
      className={styles.scroll}
      role="table"
      aria-label={name}
      aria-rowcount={rows.length + 1}
      // biome-ignore lint/a11y/noNoninteractiveTabindex: scrollable content must be reachable by keyboard
      tabIndex={0}
      style={widths}
    >
      <div role="rowgroup" className={styles.head}>
        <div role="row" aria-rowindex={1} className={styles.row}>
          {columns.map((each) => (
            <HeadCell key={each.id} column={each} sort={sort} onSort={onSort} />
          ))}
        </div>
      </div>
      <div role="rowgroup" className={styles.body} style={{ height: list.getTotalSize() }}>
        {list.getVirtualItems().map((item) => {
          const row = rows[item.index];
          if (row === undefined) return null;
          const open = (event: MouseEvent) => {
            // ignore clicks on controls, and text selection
            if ((event.target as HTMLElement).closest("a, button") || getSelection()?.toString()) return;
            onOpen(row);
          };
          return (
            // biome-ignore lint/a11y/useKeyWithClickEvents: the first cell has a link, and the table handles keys
            <div
              key={item.key}
              role="row"
              aria-rowindex={item.index + 2}
              aria-current={keyOf(row) === current || undefined}
              className={classes(styles.row, styles.data)}
              style={{ transform: `translateY(${item.start}px)` }}
              onClick={open}
              data-row={keyOf(row)}
            >
              {columns.map((each) => (
                <div
                  key={each.id}
                  role="cell"
                  className={styles.cell}
                  data-end={each.isRightAligned}
                  data-from={each.from}
                >
                  {each.show(row)}
                </div>
              ))}
            </div>
          );
        })}
      </div>
    </div>
  );
}

interface HeadCellProps<T> {
  column: Column<T>;
  sort: string;
  onSort: ((sort: string) => void) | undefined;
}

function HeadCell<T>({ column, sort, onSort }: HeadCellProps<T>) {
  const direction = sort === column.id ? "ascending" : sort === `-${column.id}` ? "descending" : undefined;
  return (
    <div
      role="columnheader"
      className={styles.cell}
      data-end={column.isRightAligned}
      data-from={column.from}
      aria-sort={direction}
    >
      {column.isSortable && onSort ? (
        <button
          type="button"
          className={styles.sort}
          onClick={() => onSort(direction === "ascending" ? `-${column.id}` : direction ? "" : column.id)}
        >
          {column.name}
          {direction && (direction === "ascending" ? <ArrowUp aria-hidden /> : <ArrowDown aria-hidden />)}
        </button>
      ) : (
        column.name
      )}
    </div>
  );
}
