import { type DragEvent, useState } from "react";
import type { QueueEntry } from "@/api/types";
import type { Neighbor } from "@/jobs/actions";
import { canMove } from "./rules";

interface Drag {
  id: string;
  /** The entry under the pointer. */
  over: string | null;
  isAfter: boolean;
}

/** Reorders the queue by drag and drop. */
export function useEntryDrag(sort: string | undefined, onMove: (id: string, neighbor: Neighbor) => void) {
  const [drag, setDrag] = useState<Drag | null>(null);
  return {
    start: (entry: QueueEntry, event: DragEvent) => {
      event.dataTransfer.effectAllowed = "move";
      event.dataTransfer.setData("text/plain", entry.label ?? entry.id);
      setDrag({ id: entry.id, over: null, isAfter: false });
    },
    over: (entry: QueueEntry, event: DragEvent) => {
      if (!drag || !canMove(entry, sort)) return;
      event.preventDefault();
      event.dataTransfer.dropEffect = "move";
      const box = event.currentTarget.getBoundingClientRect();
      const isAfter = event.clientY > box.top + box.height / 2;
      if (drag.over !== entry.id || drag.isAfter !== isAfter) setDrag({ id: drag.id, over: entry.id, isAfter });
    },
    drop: (event: DragEvent) => {
      if (!drag) return;
      event.preventDefault();
      setDrag(null);
      if (drag.over) onMove(drag.id, { other: drag.over, isAfter: drag.isAfter });
    },
    end: () => setDrag(null),
    /** Where the dragged entry would be dropped, relative to this one. */
    positionAt: (id: string): "before" | "after" | null =>
      drag?.over === id && drag.id !== id ? (drag.isAfter ? "after" : "before") : null,
  };
}
