import { type PointerEvent, type ReactNode, useCallback, useEffect, useRef } from "react";
import { classes } from "@/kit";
import { useLatest } from "@/lib/use-latest";
import styles from "./ZoomPane.module.css";

/** `scale` is 1 if the picture fits; the offset is in fractions of the pane. So panes of different sizes share a view. */
export interface View {
  scale: number;
  x: number;
  y: number;
}

export const FIT: View = { scale: 1, x: 0, y: 0 };
const MAX_SCALE = 16;
const MIN_SCALE = 0.05;
const SWIPE = 60;

/** Keeps the picture inside its pane. */
export function clampView({ scale, x, y }: View): View {
  const zoom = Math.min(MAX_SCALE, Math.max(MIN_SCALE, scale));
  const slack = Math.max(0, (zoom - 1) / 2);
  return { scale: zoom, x: Math.min(slack, Math.max(-slack, x)), y: Math.min(slack, Math.max(-slack, y)) };
}

/** Zooms by `factor` around the point (`x`, `y`), measured from the center. */
export function zoomBy(view: View, factor: number, x = 0, y = 0): View {
  // below 1 only for a small picture at its actual size
  const scale = Math.min(MAX_SCALE, Math.max(Math.min(1, view.scale), view.scale * factor));
  const grown = scale / view.scale;
  return clampView({ scale, x: x - (x - view.x) * grown, y: y - (y - view.y) * grown });
}

export interface Size {
  width: number;
  height: number;
}

/** Screen pixels per picture pixel while it fits its pane; null if unknown. */
export function fitScale(
  pane: Size | null,
  picture: Partial<Record<keyof Size, number | null>>,
  ratio = 1,
): number | null {
  if (!pane || !picture.width || !picture.height) return null;
  return Math.min(pane.width / picture.width, pane.height / picture.height) * ratio;
}

interface ZoomPaneProps {
  view: View;
  onView: (change: (view: View) => View) => void;
  onSwipe?: (direction: 1 | -1) => void;
  onPane?: (size: Size) => void;
  /** Only swipes, no zoom. */
  isFixed?: boolean;
  children: ReactNode;
}

export function ZoomPane({ view, onView, onSwipe, onPane, isFixed = false, children }: ZoomPaneProps) {
  const pane = useRef<HTMLDivElement>(null);
  const fingers = useRef(new Map<number, { x: number; y: number }>());
  const started = useRef<{ x: number; y: number } | null>(null);
  const latestOnView = useLatest(onView);
  const latestOnPane = useLatest(onPane);
  useEffect(() => {
    const seen = new ResizeObserver(([entry]) => {
      if (entry) latestOnPane.current?.({ width: entry.contentRect.width, height: entry.contentRect.height });
    });
    if (pane.current) seen.observe(pane.current);
    return () => seen.disconnect();
  }, [latestOnPane]);

  const at = useCallback((event: { clientX: number; clientY: number }) => {
    const box = (pane.current as HTMLDivElement).getBoundingClientRect();
    return { x: (event.clientX - box.left) / box.width - 0.5, y: (event.clientY - box.top) / box.height - 0.5 };
  }, []);

  useEffect(() => {
    const element = pane.current;
    if (!element || isFixed) return;
    // React registers passive wheel listeners, which cannot prevent scrolling
    const wheel = (event: WheelEvent) => {
      event.preventDefault();
      const { x, y } = at(event);
      const factor = Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0018));
      latestOnView.current((now) => zoomBy(now, factor, x, y));
    };
    element.addEventListener("wheel", wheel, { passive: false });
    return () => element.removeEventListener("wheel", wheel);
  }, [isFixed, at, latestOnView]);

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
      onView((each) => zoomBy(each, farther / (far || 1), (now.x + other.x) / 2, (now.y + other.y) / 2));
    } else if (view.scale > 1) {
      onView((each) => clampView({ ...each, x: each.x + now.x - before.x, y: each.y + now.y - before.y }));
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
        onView((now) => (now.scale > 1 ? FIT : zoomBy(now, 2.5, place.x, place.y)));
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
