import { fireEvent, render, screen } from "@testing-library/react";
import { expect, it, vi } from "vitest";
import type { QueueEntry } from "@/api/types";
import { useEntryDrag } from "./use-entry-drag";

const entry = (id: string, counts: object) => ({ id, label: id, counts, fetched: 0 }) as unknown as QueueEntry;
const ENTRIES = [entry("a", { queued: 1 }), entry("b", { queued: 1 }), entry("done", { completed: 1 })];

function List({ onMove }: { onMove: (id: string, neighbor: object) => void }) {
  const drag = useEntryDrag(undefined, onMove);
  return ENTRIES.map((each) => (
    <div
      key={each.id}
      role="listitem"
      data-drop={drag.positionAt(each.id) ?? undefined}
      onDragStart={(event) => drag.start(each, event)}
      onDragOver={(event) => drag.over(each, event)}
      onDrop={drag.drop}
    >
      {each.id}
    </div>
  ));
}

const dataTransfer = { setData: vi.fn() };

it("an entry is moved next to the waiting entry that it is dropped on", () => {
  const onMove = vi.fn();
  render(<List onMove={onMove} />);
  const [a, b, done] = ["a", "b", "done"].map((each) => screen.getByText(each)) as [
    HTMLElement,
    HTMLElement,
    HTMLElement,
  ];
  fireEvent.dragStart(a, { dataTransfer });
  fireEvent.dragOver(done, { dataTransfer, clientY: 10 });
  expect(done.dataset.drop).toBeUndefined();
  fireEvent.dragOver(b, { dataTransfer, clientY: 10 });
  const position = b.dataset.drop;
  expect(position).toBeDefined();
  fireEvent.drop(b, { dataTransfer });
  expect(onMove).toHaveBeenCalledWith("a", { other: "b", isAfter: position === "after" });
});
