import { type KeyboardEvent, type PointerEvent, type RefObject, useLayoutEffect, useRef, useState } from "react";
import { create as texts } from "@/texts/create";
import styles from "./mask.module.css";
import { applyAction, type MaskAction, type Point } from "./mask-layer";

interface MaskCanvasProps {
  picture: ImageData;
  /** The layer whose opaque pixels are masked; set when the canvas appears. */
  layer: RefObject<CanvasRenderingContext2D | null>;
  /** Diameter of the brush, in pixels of the picture. */
  size: number;
  isErasing: boolean;
  onStroke: (action: MaskAction) => void;
  onSize: (size: number) => void;
  onErasing: (isErasing: boolean) => void;
  onUndo: () => void;
}

const DIRECTIONS: Readonly<Record<string, Point>> = {
  ArrowLeft: { x: -1, y: 0 },
  ArrowRight: { x: 1, y: 0 },
  ArrowUp: { x: 0, y: -1 },
  ArrowDown: { x: 0, y: 1 },
};

/** The picture under the mask. Supports mouse, pen, touch and keys. */
export function MaskCanvas(props: MaskCanvasProps) {
  const { picture, layer, size, isErasing, onStroke } = props;
  const { width, height } = picture;
  const below = useRef<HTMLCanvasElement>(null);
  const above = useRef<HTMLCanvasElement>(null);
  const points = useRef<Point[] | null>(null);
  const [cursor, setCursor] = useState<Point | null>(null);
  // must run before the effects of the dialog, which draw the mask
  useLayoutEffect(() => {
    below.current?.getContext("2d")?.putImageData(picture, 0, 0);
    layer.current = above.current?.getContext("2d", { willReadFrequently: true }) ?? null;
  }, [picture, layer]);
  const pointOf = (event: { clientX: number; clientY: number }): Point => {
    const box = above.current?.getBoundingClientRect();
    if (!box?.width || !box.height) return { x: 0, y: 0 };
    return {
      x: ((event.clientX - box.left) * width) / box.width,
      y: ((event.clientY - box.top) * height) / box.height,
    };
  };
  const strokeOf = (drawn: readonly Point[]): MaskAction => ({ kind: "stroke", isErasing, size, points: drawn });
  const draw = (drawn: readonly Point[]) => {
    if (layer.current) applyAction(layer.current, strokeOf(drawn));
  };
  const start = (point: Point) => {
    points.current = [point];
    draw([point]);
  };
  const move = (next: readonly Point[]) => {
    const last = points.current?.at(-1);
    if (!points.current || !last) return;
    points.current.push(...next);
    draw([last, ...next]);
  };
  const end = () => {
    if (points.current) onStroke(strokeOf(points.current));
    points.current = null;
  };
  const movePointer = (event: PointerEvent) => {
    setCursor(pointOf(event));
    // older browsers do not report the points between two frames
    const events = event.nativeEvent.getCoalescedEvents?.() ?? [];
    move((events.length ? events : [event]).map(pointOf));
  };
  const press = (event: KeyboardEvent) => {
    const direction = DIRECTIONS[event.key];
    const here = cursor ?? { x: width / 2, y: height / 2 };
    if (direction) {
      const step = event.shiftKey ? size : Math.max(1, size / 4);
      const next = {
        x: Math.min(width, Math.max(0, here.x + direction.x * step)),
        y: Math.min(height, Math.max(0, here.y + direction.y * step)),
      };
      setCursor(next);
      move([next]);
    } else if (event.key === " ") {
      if (!points.current) start(here);
      setCursor(here);
    } else if (event.key === "[" || event.key === "]") props.onSize(event.key === "]" ? size * 1.25 + 1 : size / 1.25);
    else if (event.key === "e" || event.key === "b") props.onErasing(event.key === "e");
    else if (event.key === "z" && (event.ctrlKey || event.metaKey)) props.onUndo();
    else return;
    event.preventDefault();
  };
  return (
    <div
      className={styles.stage}
      style={{ aspectRatio: `${width} / ${height}`, maxWidth: `calc(56dvh * ${width / height})` }}
    >
      <canvas ref={below} width={width} height={height} aria-hidden />
      {/* biome-ignore lint/a11y/noInteractiveElementToNoninteractiveRole: with this role, screen readers pass on its keys */}
      <canvas
        ref={above}
        className={styles.mask}
        width={width}
        height={height}
        tabIndex={0}
        role="application"
        aria-label={texts.mask.canvas}
        onPointerDown={(event) => {
          if (event.button !== 0 || points.current) return;
          event.currentTarget.setPointerCapture(event.pointerId);
          setCursor(pointOf(event));
          start(pointOf(event));
        }}
        onPointerMove={movePointer}
        onPointerUp={end}
        onPointerCancel={end}
        onPointerLeave={() => !points.current && setCursor(null)}
        onKeyDown={press}
        onKeyUp={(event) => event.key === " " && end()}
        onFocus={(event) => event.currentTarget.matches(":focus-visible") && setCursor({ x: width / 2, y: height / 2 })}
        onBlur={end}
      />
      {cursor && (
        <span
          className={styles.cursor}
          aria-hidden
          style={{
            left: `${(cursor.x / width) * 100}%`,
            top: `${(cursor.y / height) * 100}%`,
            width: `${(size / width) * 100}%`,
          }}
        />
      )}
    </div>
  );
}
