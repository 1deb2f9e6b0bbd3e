import { type MouseEvent, type PointerEvent, useRef, useState } from "react";

const HOVER_MS = 140;
const LONG_PRESS_MS = 450;

/** The event that handlers get for a long press. */
const PLAIN_CLICK = { shiftKey: false, ctrlKey: false, metaKey: false, detail: 1 } as MouseEvent;

export const tileIdAt = (target: EventTarget): string | null =>
  target instanceof Element ? (target.closest<HTMLElement>("[data-id]")?.dataset.id ?? null) : null;

interface TilePointerOptions {
  onOpen: (id: string, event: MouseEvent) => void;
  onCheck: (id: string, event: MouseEvent) => void;
}

/** Handles clicks, long presses (which select) and hovering for all tiles of the grid. */
export function useTilePointer({ onOpen, onCheck }: TilePointerOptions) {
  const [hovered, setHovered] = useState<string | null>(null);
  const hoverTimer = useRef<ReturnType<typeof setTimeout>>(undefined);
  const pressTimer = useRef<ReturnType<typeof setTimeout>>(undefined);
  const wasLongPress = useRef(false);
  const handlers = {
    onPointerOver: (event: PointerEvent) => {
      if (event.pointerType !== "mouse" || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
      const id = tileIdAt(event.target);
      if (id === hovered) return;
      clearTimeout(hoverTimer.current);
      setHovered(null);
      if (id) hoverTimer.current = setTimeout(() => setHovered(id), HOVER_MS);
    },
    onPointerLeave: () => {
      clearTimeout(hoverTimer.current);
      setHovered(null);
    },
    onClick: (event: MouseEvent) => {
      const id = tileIdAt(event.target);
      if (!id || wasLongPress.current) return;
      const isCheck = (event.target as Element).closest("[data-check]") !== null;
      if (isCheck) onCheck(id, event);
      else onOpen(id, event);
    },
    onPointerDown: (event: PointerEvent<HTMLDivElement>) => {
      wasLongPress.current = false;
      const id = tileIdAt(event.target);
      if (event.pointerType === "mouse" || !id) return;
      clearTimeout(pressTimer.current);
      pressTimer.current = setTimeout(() => {
        wasLongPress.current = true;
        onCheck(id, PLAIN_CLICK);
      }, LONG_PRESS_MS);
    },
    onPointerUp: () => clearTimeout(pressTimer.current),
    onPointerCancel: () => clearTimeout(pressTimer.current),
  };
  return { hovered, handlers };
}
