import { useNavigate, useSearch } from "@tanstack/react-router";
import { useCallback, useMemo, useState } from "react";
import type { QueueAsked } from "@/api/queries";
import { fitInUrl, joinList, splitList } from "@/lib/search-params";

export type QueueSearch = Partial<Record<"status" | "workflow" | "batch" | "q" | "sort" | "job" | "sel", string>>;

/** The state of the queue page, which is kept in the URL. */
export function useQueueSearch() {
  const search: QueueSearch = useSearch({ from: "/queue" });
  const navigate = useNavigate({ from: "/queue" });
  const { status, workflow, q, sort } = search;
  const asked = useMemo<QueueAsked>(
    () => ({ ...(status && { status }), ...(workflow && { workflow }), ...(q && { q }), ...(sort && { sort }) }),
    [status, workflow, q, sort],
  );
  /** A selection that is too long for the URL. */
  const [longSelection, setLongSelection] = useState("");
  const change = useCallback(
    ({ sel, ...next }: QueueSearch, isNewPage = false) => {
      const { url, state } = fitInUrl(sel ?? "");
      if (sel !== undefined) setLongSelection(state);
      const selection = sel === undefined ? {} : { sel: url };
      void navigate({ search: (before) => ({ ...before, ...next, ...selection }), replace: !isNewPage });
    },
    [navigate],
  );
  const list = longSelection || search.sel;
  const selected = useMemo(() => splitList(list), [list]);
  const setSelected = useCallback((ids: readonly string[]) => change({ sel: joinList(ids) ?? "" }), [change]);
  /** Replaces all filters and clears the selection. */
  const setFilters = (next: QueueAsked) =>
    change({
      status: next.status ?? "",
      workflow: next.workflow ?? "",
      q: next.q ?? "",
      sort: next.sort ?? "",
      sel: "",
    });
  return { search, asked, change, selected, setSelected, setFilters };
}
