import {
  type MouseEvent,
  type PointerEvent,
  type Ref,
  useCallback,
  useEffect,
  useImperativeHandle,
  useLayoutEffect,
  useMemo,
  useRef,
  useState,
} from "react";
import { plain } from "./events";
import styles from "./gallery.module.css";
import { items } from "./items";
import { type Group, kept, type Layout, layOut, type Measures, rowOf, rowsBetween } from "./layout";
import { Tile } from "./Tile";

export interface GridHandle {
  layout: Layout;
  /** Into sight, and with the keyboard's focus. */
  focus: (id: string) => void;
  toTop: () => void;
  readonly scrolled: number;
}

interface GridProps {
  groups: readonly Group[];
  /** What is shown: another one begins at its top. */
  shown: string;
  rowHeight: number;
  selected: ReadonlySet<string>;
  current: string | null;
  nameOf: (group: Group) => string;
  label: string;
  onOpen: (id: string, event: MouseEvent) => void;
  onCheck: (id: string, event: MouseEvent) => void;
  /** It has the keyboard's focus. */
  onCurrent: (id: string) => void;
  onMenu: (id: string | null) => void;
  onScrolled: (isAtTop: boolean) => void;
  ref: Ref<GridHandle>;
  children?: React.ReactNode;
}

/** This much above and below is ready before it is seen. */
const AHEAD = 700;
const NARROW = 560;
const HOVER_MS = 140;
const PRESS_MS = 450;
const AT_TOP = 24;

const measuresOf = (width: number, rowHeight: number): Measures => {
  const isNarrow = width < NARROW;
  return { width, rowHeight: isNarrow ? rowHeight * 0.62 : rowHeight, gap: isNarrow ? 4 : 8, headingHeight: 44 };
};

const places = new Map<string, number>();

export function Grid({ groups, shown, rowHeight, selected, current, nameOf, label, ref, children, ...on }: GridProps) {
  const scroller = useRef<HTMLDivElement>(null);
  const inner = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const element = inner.current as HTMLDivElement;
    const measure = () => setWidth(Math.floor(element.clientWidth));
    measure();
    const watching = new ResizeObserver(measure);
    watching.observe(element);
    return () => watching.disconnect();
  }, []);
  const layout = useMemo(() => layOut(groups, measuresOf(width || 1000, rowHeight)), [groups, width, rowHeight]);

  const [range, setRange] = useState<readonly [number, number]>([0, 0]);
  const newest = useRef(layout);
  const updateRange = useCallback(() => {
    const element = scroller.current;
    if (!element) return;
    const { scrollTop, clientHeight } = element;
    const next = rowsBetween(newest.current.rows, scrollTop - AHEAD, scrollTop + clientHeight + AHEAD);
    setRange((now) => (now[0] === next[0] && now[1] === next[1] ? now : next));
  }, []);

  const before = useRef<{ layout: Layout; shown: string } | null>(null);
  useLayoutEffect(() => {
    const element = scroller.current as HTMLDivElement;
    const last = before.current;
    newest.current = layout;
    if (!width) return;
    if (last?.shown !== shown) element.scrollTop = places.get(shown) ?? 0;
    else if (last.layout !== layout && element.scrollTop > AT_TOP) {
      element.scrollTop = kept(last.layout, layout, element.scrollTop);
    }
    before.current = { layout, shown };
    updateRange();
  }, [layout, shown, width, updateRange]);

  const { onScrolled } = on;
  useEffect(() => {
    const element = scroller.current as HTMLDivElement;
    let frame = 0;
    const scrolled = () => {
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        places.set(shown, element.scrollTop);
        updateRange();
        onScrolled(element.scrollTop <= AT_TOP);
      });
    };
    const watching = new ResizeObserver(updateRange);
    watching.observe(element);
    element.addEventListener("scroll", scrolled, { passive: true });
    return () => {
      watching.disconnect();
      cancelAnimationFrame(frame);
      element.removeEventListener("scroll", scrolled);
    };
  }, [shown, updateRange, onScrolled]);

  const [firstRow, endRow] = range;
  const rows = layout.rows.slice(firstRow, endRow);
  const first = rows[0]?.first ?? 0;
  const end = rows.at(-1)?.end ?? 0;
  useEffect(() => items.want(layout.ids.slice(first, end)), [layout, first, end]);

  const wanted = useRef<string | null>(null);
  useLayoutEffect(() => {
    if (!wanted.current) return;
    const found = inner.current?.querySelector<HTMLElement>(`[data-id="${CSS.escape(wanted.current)}"] [data-open]`);
    if (!found) return;
    wanted.current = null;
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
      wanted.current = id;
      updateRange();
      setRange((now) => [...now]);
    },
    toTop: () => scroller.current?.scrollTo({ top: 0, behavior: "smooth" }),
    get scrolled() {
      return scroller.current?.scrollTop ?? 0;
    },
  }));

  const [hovered, setHovered] = useState<string | null>(null);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  const press = useRef<ReturnType<typeof setTimeout>>(undefined);
  const wasPressed = useRef(false);
  const over = (event: PointerEvent) => {
    if (event.pointerType !== "mouse" || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    const id = idAt(event.target);
    if (id === hovered) return;
    clearTimeout(timer.current);
    setHovered(null);
    if (id) timer.current = setTimeout(() => setHovered(id), HOVER_MS);
  };
  const out = () => {
    clearTimeout(timer.current);
    setHovered(null);
  };
  const clicked = (event: MouseEvent) => {
    const id = idAt(event.target);
    if (!id || wasPressed.current) return;
    const isCheck = (event.target as Element).closest("[data-check]") !== null;
    if (isCheck) on.onCheck(id, event);
    else on.onOpen(id, event);
  };
  // a finger that stays selects
  const pressed = (event: PointerEvent<HTMLDivElement>) => {
    wasPressed.current = false;
    const id = idAt(event.target);
    if (event.pointerType === "mouse" || !id) return;
    clearTimeout(press.current);
    press.current = setTimeout(() => {
      wasPressed.current = true;
      on.onCheck(id, plain);
    }, PRESS_MS);
  };
  const released = () => clearTimeout(press.current);

  const [from, to] = [rows[0]?.top ?? 0, (rows.at(-1)?.top ?? 0) + (rows.at(-1)?.height ?? 0)];
  const headings = layout.headings.filter(
    (each, index) => each.top <= to && (layout.headings[index + 1]?.top ?? Number.POSITIVE_INFINITY) >= from,
  );
  const hasCurrent =
    current !== null && (layout.placeOf.get(current) ?? -1) >= first && (layout.placeOf.get(current) ?? -1) < end;
  return (
    <div ref={scroller} className={styles.scroller} data-gallery>
      {/* biome-ignore lint/a11y/noStaticElementInteractions: the tiles in it are buttons */}
      {/* biome-ignore lint/a11y/useKeyWithClickEvents: the tiles in it are buttons */}
      <div
        ref={inner}
        className={styles.inner}
        style={{ height: layout.height }}
        onClick={clicked}
        onPointerOver={over}
        onPointerLeave={out}
        onPointerDown={pressed}
        onPointerUp={released}
        onPointerCancel={released}
        onFocus={(event) => {
          const id = idAt(event.target);
          if (id) on.onCurrent(id);
        }}
        onContextMenuCapture={(event) => on.onMenu(idAt(event.target))}
      >
        {headings.map((each, index) => (
          <div
            key={each.key}
            className={styles.lane}
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

const idAt = (target: EventTarget): string | null =>
  target instanceof Element ? (target.closest<HTMLElement>("[data-id]")?.dataset.id ?? null) : null;
