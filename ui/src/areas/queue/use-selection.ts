import { useRef } from "react";
import type { QueueEntry } from "@/api/types";
import { ALL, selectionId } from "./rules";

/** Selects entries one by one, or as a range from the last selected one. */
export function useSelection(
  entries: readonly QueueEntry[],
  selected: readonly string[],
  setSelected: (ids: readonly string[]) => void,
): (entry: QueueEntry, isOn: boolean, isRange: boolean) => void {
  const last = useRef<string | null>(null);
  return (entry, isOn, isRange) => {
    let ids = [selectionId(entry)];
    if (isRange && last.current) {
      const indexes = [last.current, entry.id].map((id) => entries.findIndex((each) => each.id === id));
      const [from = 0, to = 0] = indexes.sort((a, b) => a - b);
      if (from >= 0) ids = entries.slice(from, to + 1).map(selectionId);
    }
    last.current = entry.id;
    const rest = selected.filter((each) => each !== ALL && !ids.includes(each));
    setSelected(isOn ? [...rest, ...ids] : rest);
  };
}
