import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useMemo } from "react";
import { GALLERY_LIMIT } from "@/api/prefetch";
import { usePendingDeletes } from "@/kit/undoable-delete";
import type { Item } from "./item";
import { items } from "./item-store";
import { prependOutputs } from "./layout";
import { type GalleryQuery, type Index, index, type Newest, newest, removeFromIndex } from "./queries";

const pad = (value: number): string => String(value).padStart(2, "0");

/** Local day. */
export function dayOf(at: string | number): string {
  const date = new Date(at);
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
}

export const ratioOf = ({ width, height }: Pick<Item, "width" | "height">): number =>
  width && height ? Math.round((100 * width) / height) : 0;

/** The index, updated with new outputs. */
export function useIndex(query: GalleryQuery) {
  const client = useQueryClient();
  const found = useQuery(index(query));
  const { data: page } = useQuery(newest(query));
  const { data, isPlaceholderData } = found;
  const isByTime = (query.by || "day") === "day" && query.sort !== "oldest";
  useEffect(() => {
    if (page) items.put(page.items as Item[]);
  }, [page]);
  // show the newest page before the whole index arrives
  const first = useMemo(
    () => (page?.items.length && !data && isByTime ? prependOutputs([], page.items.map(indexEntry)) : null),
    [page, data, isByTime],
  );
  // either query may finish first; an unchanged index keeps its identity, which ends the loop
  useEffect(() => {
    if (!page || !data || isPlaceholderData) return;
    const known = new Set(data.groups.flatMap((group) => group.ids));
    const added = page.items.filter((each) => !known.has(each.id));
    if (!added.length && page.total === data.total) return;
    const { queryKey } = index(query);
    if (isByTime && added.length < GALLERY_LIMIT && data.total + added.length === page.total) {
      client.setQueryData<Index>(queryKey, {
        groups: prependOutputs(data.groups, added.map(indexEntry)),
        total: page.total,
      });
    } else void client.invalidateQueries({ queryKey });
  }, [page, data, isPlaceholderData, isByTime, query, client]);
  const leaving = usePendingDeletes();
  const shown = useMemo(() => (data && leaving.size ? removeFromIndex(data, leaving) : data), [data, leaving]);
  return { ...found, data: shown, first };
}

const indexEntry = (each: Newest["items"][number]) => ({
  id: each.id,
  key: dayOf(each.created_at),
  ratio: ratioOf(each),
});
