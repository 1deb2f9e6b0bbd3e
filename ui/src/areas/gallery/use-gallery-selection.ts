import { useEffect, useMemo, useRef, useState } from "react";
import {
  extendSelection,
  formatSelection,
  keepExisting,
  NONE,
  parseSelection,
  type Selection,
  selectAllOf,
  sortByOrder,
  toggleSelected,
} from "./selection";

interface SelectionOptions {
  order: readonly string[];
  /** Whether `order` is complete: the index has arrived. */
  isLoaded: boolean;
  /** Selection in the URL. */
  sel: string | undefined;
  onSel: (sel: string) => void;
}

/** Selected outputs, mirrored in the URL. */
export function useGallerySelection({ order, isLoaded, sel, onSel }: SelectionOptions) {
  const [selection, setSelection] = useState<Selection>(() => parseSelection(sel, order));
  const known = useMemo(() => new Set(order), [order]);
  const selected = useMemo(
    () => (isLoaded ? keepExisting(selection, (id) => known.has(id)) : selection),
    [selection, known, isLoaded],
  );
  const ids = useMemo(() => sortByOrder(selected.ids, order), [selected, order]);
  // `all` needs the complete order
  const wasRead = useRef(false);
  useEffect(() => {
    if (!isLoaded || wasRead.current) return;
    wasRead.current = true;
    if (sel) setSelection(parseSelection(sel, order));
  }, [isLoaded, order, sel]);
  const next = formatSelection(selected, order.length) ?? "";
  useEffect(() => {
    if (wasRead.current && next !== (sel ?? "")) onSel(next);
  }, [next, sel, onSel]);
  return {
    selected,
    /** In display order. */
    ids,
    known,
    clear: () => setSelection(NONE),
    selectAll: () => {
      if (isLoaded) setSelection(selectAllOf(order));
    },
    toggle: (id: string) => setSelection(toggleSelected(selected, id)),
    /** Selects the range up to `id`; it starts at `from` if nothing is selected yet. */
    extendTo: (id: string, from: string | null = null) => {
      const start = selected.ids.size || !from ? selected : toggleSelected(selected, from);
      setSelection(extendSelection(start, order, id));
    },
  };
}
