import { renderHook } from "@testing-library/react";
import { describe, expect, it, vi } from "vitest";
import type { QueueEntry } from "@/api/types";
import { useSelection } from "./use-selection";

const entry = (id: string, isBatch = false) => ({ id, is_batch: isBatch }) as QueueEntry;
const ENTRIES = [entry("a"), entry("b", true), entry("c"), entry("d")];
const [A, B, C, D] = ENTRIES as [QueueEntry, QueueEntry, QueueEntry, QueueEntry];

function renderSelection(selected: string[] = []) {
  const setSelected = vi.fn();
  const { result } = renderHook(() => useSelection(ENTRIES, selected, setSelected));
  return { select: result.current, last: () => setSelected.mock.lastCall?.[0] };
}

describe("selecting entries", () => {
  it("adds and removes single entries", () => {
    const { select, last } = renderSelection(["d"]);
    select(A, true, false);
    expect(last()).toEqual(["d", "a"]);
    select(D, false, false);
    expect(last()).toEqual([]);
  });

  it("extends from the last selected entry, in both directions", () => {
    const { select, last } = renderSelection();
    select(C, true, false);
    select(A, true, true);
    expect(last()).toEqual(["a", "b-b", "c"]);
  });

  it("replaces the selection of all matches", () => {
    const { select, last } = renderSelection(["all"]);
    select(B, true, false);
    expect(last()).toEqual(["b-b"]);
  });
});
