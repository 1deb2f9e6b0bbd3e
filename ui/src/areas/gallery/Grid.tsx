import { type MouseEvent, type ReactNode, type Ref, useImperativeHandle, useLayoutEffect, useRef } from "react";
import styles from "./Grid.module.css";
import { type Group, type Layout, rowOf } from "./layout";
import { Tile } from "./Tile";
import { tileIdAt, useTilePointer } from "./use-tile-pointer";
import { useVisibleRows } from "./use-visible-rows";

export interface GridHandle {
  layout: Layout;
  /** Scrolls an output into view and focuses it. */
  focus: (id: string) => void;
  toTop: () => void;
  readonly scrolled: number;
}

interface GridProps {
  groups: readonly Group[];
  /** Key of the shown view. */
  viewKey: string;
  rowHeight: number;
  selected: ReadonlySet<string>;
  current: string | null;
  nameOf: (group: Group) => string;
  label: string;
  onOpen: (id: string, event: MouseEvent) => void;
  onCheck: (id: string, event: MouseEvent) => void;
  /** Called when a tile gets the focus. */
  onCurrent: (id: string) => void;
  onMenu: (id: string | null) => void;
  onScrolled: (isAtTop: boolean) => void;
  ref: Ref<GridHandle>;
  children?: ReactNode;
}

/** Virtual grid of all outputs: only rows in view are rendered. */
export function Grid({
  groups,
  viewKey,
  rowHeight,
  selected,
  current,
  nameOf,
  label,
  ref,
  children,
  ...on
}: GridProps) {
  const scroller = useRef<HTMLDivElement>(null);
  const inner = useRef<HTMLDivElement>(null);
  const { onScrolled } = on;
  const options = { scroller, inner, groups, viewKey, rowHeight, onScrolled };
  const { width, layout, rows, first, end, updateRange, rerender } = useVisibleRows(options);
  const { hovered, handlers } = useTilePointer(on);

  const pendingFocus = useRef<string | null>(null);
  useLayoutEffect(() => {
    if (!pendingFocus.current) return;
    const found = inner.current?.querySelector<HTMLElement>(
      `[data-id="${CSS.escape(pendingFocus.current)}"] [data-open]`,
    );
    if (!found) return;
    pendingFocus.current = null;
    found.focus({ preventScroll: true });
  });
  useImperativeHandle(ref, () => ({
    layout,
    focus: (id) => {
      const place = layout.placeOf.get(id);
      const element = scroller.current;
      const row = place === undefined ? undefined : layout.rows[rowOf(layout, place)];
      if (!row || !element) return;
      const [top, bottom] = [row.top - 52, row.top + row.height + 12];
      if (top < element.scrollTop) element.scrollTop = top;
      else if (bottom > element.scrollTop + element.clientHeight) element.scrollTop = bottom - element.clientHeight;
      pendingFocus.current = id;
      updateRange();
      rerender();
    },
    toTop: () => scroller.current?.scrollTo({ top: 0, behavior: "smooth" }),
    get scrolled() {
      return scroller.current?.scrollTop ?? 0;
    },
  }));

  const [from, to] = [rows[0]?.top ?? 0, (rows.at(-1)?.top ?? 0) + (rows.at(-1)?.height ?? 0)];
  const headings = layout.headings.filter(
    (each, index) => each.top <= to && (layout.headings[index + 1]?.top ?? Number.POSITIVE_INFINITY) >= from,
  );
  const hasCurrent =
    current !== null && (layout.placeOf.get(current) ?? -1) >= first && (layout.placeOf.get(current) ?? -1) < end;
  return (
    <div ref={scroller} className={styles.scroller} data-gallery>
      {/* biome-ignore lint/a11y/noStaticElementInteractions: the tiles in it are buttons */}
      <div
        ref={inner}
        className={styles.inner}
        style={{ height: layout.height }}
        {...handlers}
        onFocus={(event) => {
          const id = tileIdAt(event.target);
          if (id) on.onCurrent(id);
        }}
        onContextMenuCapture={(event) => on.onMenu(tileIdAt(event.target))}
      >
        {headings.map((each, index) => (
          <div
            key={each.key}
            className={styles.headingTrack}
            style={{
              top: each.top,
              height: (layout.headings[each.group + 1]?.top ?? layout.height) - each.top,
              zIndex: headings.length - index,
            }}
          >
            <h2 className={styles.heading}>
              <span>{nameOf(groups[each.group] as Group)}</span>
            </h2>
          </div>
        ))}
        <div role="list" aria-label={label}>
          {width > 0 &&
            rows.flatMap(({ top, height, first: start, end: stop }) =>
              layout.ids.slice(start, stop).map((id, index) => {
                const place = start + index;
                return (
                  <Tile
                    key={id}
                    id={id}
                    left={layout.left[place] ?? 0}
                    top={top}
                    width={layout.widths[place] ?? 0}
                    height={height}
                    place={place}
                    total={layout.ids.length}
                    isSelected={selected.has(id)}
                    isCurrent={hasCurrent ? id === current : place === first}
                    isPlaying={hovered === id}
                  />
                );
              }),
            )}
        </div>
      </div>
      {children}
    </div>
  );
}
