import { type PointerEvent, type ReactNode, useEffect, useRef } from "react";
import { classes } from "@/kit";
import styles from "./viewer.module.css";

/** How much larger than fitting, and how far moved, in parts of the pane: so panes of other sizes can follow. */
export interface View {
  scale: number;
  x: number;
  y: number;
}

export const FIT: View = { scale: 1, x: 0, y: 0 };
const MOST = 16;
const LEAST = 0.05;
const SWIPE = 60;

/** Nothing is moved out of its pane. */
export function within({ scale, x, y }: View): View {
  const zoom = Math.min(MOST, Math.max(LEAST, scale));
  const room = Math.max(0, (zoom - 1) / 2);
  return { scale: zoom, x: Math.min(room, Math.max(-room, x)), y: Math.min(room, Math.max(-room, y)) };
}

/** Larger by `factor`, while the point at (`x`, `y`) from the middle stays where it is. */
export function zoomed(view: View, factor: number, x = 0, y = 0): View {
  // smaller than fitting is only what was made so: a small picture at its own size
  const scale = Math.min(MOST, Math.max(Math.min(1, view.scale), view.scale * factor));
  const grown = scale / view.scale;
  return within({ scale, x: x - (x - view.x) * grown, y: y - (y - view.y) * grown });
}

export interface Size {
  width: number;
  height: number;
}

/** How many pixels of the screen one of a picture has, while it fits its pane; null where that is not known. */
export function fitOf(
  pane: Size | null,
  picture: Partial<Record<keyof Size, number | null>>,
  ratio = 1,
): number | null {
  if (!pane || !picture.width || !picture.height) return null;
  return Math.min(pane.width / picture.width, pane.height / picture.height) * ratio;
}

interface ZoomProps {
  view: View;
  onView: (change: (view: View) => View) => void;
  onSwipe?: (direction: 1 | -1) => void;
  /** How large its pane is. */
  onPane?: (size: Size) => void;
  /** It cannot be enlarged, only swiped away. */
  isFixed?: boolean;
  children: ReactNode;
}

export function Zoom({ view, onView, onSwipe, onPane, isFixed = false, children }: ZoomProps) {
  const pane = useRef<HTMLDivElement>(null);
  const fingers = useRef(new Map<number, { x: number; y: number }>());
  const started = useRef<{ x: number; y: number } | null>(null);
  const newest = useRef(onView);
  newest.current = onView;

  const newestOnPane = useRef(onPane);
  newestOnPane.current = onPane;
  useEffect(() => {
    const seen = new ResizeObserver(([entry]) => {
      if (entry) newestOnPane.current?.({ width: entry.contentRect.width, height: entry.contentRect.height });
    });
    if (pane.current) seen.observe(pane.current);
    return () => seen.disconnect();
  }, []);

  const at = (event: { clientX: number; clientY: number }) => {
    const box = (pane.current as HTMLDivElement).getBoundingClientRect();
    return { x: (event.clientX - box.left) / box.width - 0.5, y: (event.clientY - box.top) / box.height - 0.5 };
  };

  // biome-ignore lint/correctness/useExhaustiveDependencies: `at` reads the pane of the moment
  useEffect(() => {
    const element = pane.current;
    if (!element || isFixed) return;
    // React's own listener may not keep the page from scrolling
    const wheel = (event: WheelEvent) => {
      event.preventDefault();
      const { x, y } = at(event);
      const factor = Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0018));
      newest.current((now) => zoomed(now, factor, x, y));
    };
    element.addEventListener("wheel", wheel, { passive: false });
    return () => element.removeEventListener("wheel", wheel);
  }, [isFixed]);

  const down = (event: PointerEvent<HTMLDivElement>) => {
    if (event.button !== 0 || (event.target as Element).closest("button, input")) return;
    fingers.current.set(event.pointerId, at(event));
    started.current = fingers.current.size === 1 ? { x: event.clientX, y: event.clientY } : null;
    if (!isFixed && (event.pointerType !== "mouse" || view.scale > 1))
      event.currentTarget.setPointerCapture(event.pointerId);
  };
  const moved = (event: PointerEvent<HTMLDivElement>) => {
    const before = fingers.current.get(event.pointerId);
    if (!before || isFixed) return;
    const now = at(event);
    const others = [...fingers.current].filter(([id]) => id !== event.pointerId).map(([, each]) => each);
    fingers.current.set(event.pointerId, now);
    const other = others[0];
    if (other) {
      const [far, farther] = [
        Math.hypot(before.x - other.x, before.y - other.y),
        Math.hypot(now.x - other.x, now.y - other.y),
      ];
      onView((each) => zoomed(each, farther / (far || 1), (now.x + other.x) / 2, (now.y + other.y) / 2));
    } else if (view.scale > 1) {
      onView((each) => within({ ...each, x: each.x + now.x - before.x, y: each.y + now.y - before.y }));
    }
  };
  const up = (event: PointerEvent<HTMLDivElement>) => {
    if (!fingers.current.delete(event.pointerId) || !started.current) return;
    const [x, y] = [event.clientX - started.current.x, event.clientY - started.current.y];
    started.current = null;
    if (event.pointerType !== "mouse" && view.scale === 1 && Math.abs(x) > SWIPE && Math.abs(x) > 2 * Math.abs(y)) {
      onSwipe?.(x < 0 ? 1 : -1);
    }
  };
  const { scale, x, y } = view;
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: buttons and keys do the same
    <div
      ref={pane}
      className={classes(styles.zoom, scale > 1 && styles.zoomed)}
      onPointerDown={down}
      onPointerMove={moved}
      onPointerUp={up}
      onPointerCancel={up}
      onDoubleClick={(event) => {
        if (isFixed || (event.target as Element).closest("button, input, pre")) return;
        const place = at(event);
        onView((now) => (now.scale > 1 ? FIT : zoomed(now, 2.5, place.x, place.y)));
      }}
    >
      <div
        className={styles.zoomedInner}
        style={scale === 1 ? undefined : { transform: `translate(${x * 100}%, ${y * 100}%) scale(${scale})` }}
      >
        {children}
      </div>
    </div>
  );
}
