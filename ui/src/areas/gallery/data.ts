// What the gallery asks for, and what it does with outputs.

import { keepPreviousData, type QueryClient, queryOptions, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useMemo } from "react";
import { type BodyOf, get, patch, post, remove } from "@/api/client";
import { GALLERY_LIMIT } from "@/api/early";
import { Problem } from "@/api/problem";
import { keys } from "@/api/queries";
import type { components } from "@/api/schema";
import { useLeaving } from "@/app/leaving";
import type { Item } from "./item";
import { items } from "./items";
import { type Group, withNew, without } from "./layout";

type Schemas = components["schemas"];
export type Collection = Schemas["Collection"];
export type AboutJob = Schemas["AboutJob"];

export interface Index {
  groups: readonly Group[];
  total: number;
}

type Newest = Schemas["GalleryPage"];

export const GROUPINGS = ["day", "batch", "workflow", "prompt"] as const;
export const KINDS = ["image", "video", "audio", "text"] as const;

/** The words of the address that say what is shown. */
export interface Wanted {
  q?: string;
  workflow?: string;
  batch?: string;
  kind?: string;
  mark?: string;
  collection?: string;
  day?: string;
  sort?: string;
  by?: string;
}

export const FILTERS = ["q", "workflow", "batch", "kind", "mark", "collection", "day"] as const;
export const isFiltered = (wanted: Wanted): boolean => FILTERS.some((each) => wanted[each]);

const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
const INDEX = "gallery-index";
/** Of one request. */
const MOST_CHOSEN = 2000;

function asked({ day, by: _by, ...rest }: Wanted): Record<string, unknown> {
  return { ...rest, tz: zone, ...(day && { from: day, to: day }) };
}

export const index = (wanted: Wanted) =>
  queryOptions({
    queryKey: [INDEX, wanted] as const,
    queryFn: async ({ signal }): Promise<Index> =>
      get("/api/gallery/index", { query: { ...asked(wanted), by: wanted.by ?? "day" } as never, signal }),
    placeholderData: keepPreviousData,
  });

/** Fetched anew whenever something was made: what is new in it goes into the index, which may be long. */
export const newest = (wanted: Wanted) =>
  queryOptions({
    queryKey: [...keys.gallery, "newest", wanted] as const,
    queryFn: ({ signal }) =>
      get("/api/gallery", { query: { ...asked(wanted), limit: GALLERY_LIMIT } as never, signal }),
    staleTime: 0,
  });

/** On which days something was made, newest first. */
export const days = queryOptions({
  queryKey: [...keys.gallery, "days"] as const,
  queryFn: async ({ signal }) => (await get("/api/gallery/days", { query: { tz: zone } as never, signal })).days,
});

export const collections = queryOptions({
  queryKey: ["collections"] as const,
  queryFn: async ({ signal }) => (await get("/api/collections", { signal })).items,
});

/** What a job was made of; null on a server, which does not tell it here. */
export const aboutJob = (id: string) =>
  queryOptions({
    queryKey: ["job-about", id] as const,
    queryFn: async ({ signal }) => {
      try {
        return await get("/api/desk/jobs/{job_id}", { path: { job_id: id }, signal });
      } catch (thrown) {
        if (thrown instanceof Problem && thrown.status === 404) return null;
        throw thrown;
      }
    },
  });

const pad = (value: number): string => String(value).padStart(2, "0");

/** The day of a moment, where one lives. */
export function dayOf(at: string | number): string {
  const date = new Date(at);
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
}

export const ratioOf = ({ width, height }: Pick<Item, "width" | "height">): number =>
  width && height ? Math.round((100 * width) / height) : 0;

/** The index, with what is made while one looks at it. */
export function useIndex(wanted: Wanted) {
  const client = useQueryClient();
  const found = useQuery(index(wanted));
  const { data: page } = useQuery(newest(wanted));
  const { data, isPlaceholderData } = found;
  const isByTime = (wanted.by ?? "day") === "day" && wanted.sort !== "oldest";
  useEffect(() => {
    if (page) items.put(page.items as Item[]);
  }, [page]);
  // the newest need not wait for all the others
  const first = useMemo(
    () => (page?.items.length && !data && isByTime ? withNew([], page.items.map(placed)) : null),
    [page, data, isByTime],
  );
  // either may come first; an index that does not change is the very same, so that this ends
  useEffect(() => {
    if (!page || !data || isPlaceholderData) return;
    const known = new Set(data.groups.flatMap((group) => group.ids));
    const added = page.items.filter((each) => !known.has(each.id));
    if (!added.length && page.total === data.total) return;
    const { queryKey } = index(wanted);
    if (isByTime && added.length < GALLERY_LIMIT && data.total + added.length === page.total) {
      client.setQueryData<Index>(queryKey, { groups: withNew(data.groups, added.map(placed)), total: page.total });
    } else void client.invalidateQueries({ queryKey });
  }, [page, data, isPlaceholderData, isByTime, wanted, client]);
  const leaving = useLeaving();
  const shown = useMemo(() => (data && leaving.size ? withoutThese(data, leaving) : data), [data, leaving]);
  return { ...found, data: shown, first };
}

const placed = (each: Newest["items"][number]) => ({
  id: each.id,
  key: dayOf(each.created_at),
  ratio: ratioOf(each),
});

const parts = (ids: readonly string[]): string[][] =>
  Array.from({ length: Math.ceil(ids.length / MOST_CHOSEN) }, (_each, at) =>
    ids.slice(at * MOST_CHOSEN, (at + 1) * MOST_CHOSEN),
  );

export type Mark = "starred" | "rejected";
type Marks = Omit<BodyOf<"/api/gallery/marks", "post">, "ids">;

export interface Deleted {
  deleted: number;
  left: string[];
  refused: number;
}

/** What can be done with outputs; what it changes is shown at once, and put right where the server says no. */
export class Verbs {
  constructor(private readonly client: QueryClient) {}

  async mark(ids: readonly string[], mark: Mark, isOn: boolean): Promise<void> {
    const before = ids.map((id) => items.get(id)).filter((each) => each !== undefined);
    items.change(ids, (item) => marked(item, mark, isOn));
    try {
      await this.send(ids, { [mark]: isOn });
    } catch (thrown) {
      items.put(before);
      throw thrown;
    }
    // lists of what is marked are others now
    void this.client.invalidateQueries({ predicate: ({ queryKey }) => isOfMarks(queryKey) });
  }

  async note(id: string, note: string): Promise<void> {
    await this.send([id], { note });
    items.change([id], (item) => ({ ...item, note: note || null }));
  }

  async collect(ids: readonly string[], collection: string): Promise<void> {
    await this.send(ids, { add_to: collection });
    items.change(ids, (item) => ({ ...item, collections: [...new Set([...item.collections, collection])] }));
    this.collected();
  }

  async release(ids: readonly string[], collection: string): Promise<void> {
    await this.send(ids, { remove_from: collection });
    items.change(ids, (item) => ({ ...item, collections: item.collections.filter((each) => each !== collection) }));
    this.collected();
  }

  async createCollection(name: string): Promise<Collection> {
    const { data } = await post("/api/collections", { body: { name } });
    this.collected();
    return data;
  }

  async renameCollection(id: string, name: string): Promise<void> {
    await patch("/api/collections/{collection_id}", { path: { collection_id: id }, body: { name } });
    this.collected();
  }

  async removeCollection(id: string): Promise<void> {
    await remove("/api/collections/{collection_id}", { path: { collection_id: id } });
    this.collected();
  }

  async zip(ids: readonly string[]): Promise<string[]> {
    const urls = [];
    for (const some of parts(ids)) urls.push((await post("/api/gallery/zip", { body: { ids: some } })).data.url);
    return urls;
  }

  async copy(ids: readonly string[], folder: string) {
    const done = { folder, copied: 0, notCopied: 0 };
    for (const some of parts(ids)) {
      const { data } = await post("/api/desk/gallery/copy", { body: { ids: some, folder } });
      done.folder = data.folder;
      done.copied += data.copied.length;
      done.notCopied += data.not_copied.length;
    }
    return done;
  }

  async delete(ids: readonly string[], keepFiles: boolean): Promise<Deleted> {
    const done: Deleted = { deleted: 0, left: [], refused: 0 };
    for (const some of parts(ids)) {
      const { data } = await post("/api/gallery/delete", { body: { ids: some, keep_files: keepFiles } });
      done.deleted += data.deleted.length;
      done.left.push(...data.left);
      done.refused += data.refused.length;
      const gone = new Set([...data.deleted, ...data.missing]);
      // first, so that what is gone does not look new
      this.client.setQueriesData<Newest>({ queryKey: [...keys.gallery, "newest"] }, (before) => {
        if (!before) return before;
        const left = before.items.filter((each) => !gone.has(each.id));
        return { ...before, items: left, total: before.total - (before.items.length - left.length) };
      });
      this.client.setQueriesData<Index>({ queryKey: [INDEX] }, (before) =>
        before ? withoutThese(before, gone) : before,
      );
    }
    void this.client.invalidateQueries({ queryKey: keys.gallery });
    void this.client.invalidateQueries({ queryKey: keys.jobs });
    this.collected();
    return done;
  }

  private async send(ids: readonly string[], marks: Marks): Promise<void> {
    for (const some of parts(ids)) await post("/api/gallery/marks", { body: { ids: some, ...marks } });
  }

  private collected(): void {
    void this.client.invalidateQueries({ queryKey: collections.queryKey });
    void this.client.invalidateQueries({ predicate: ({ queryKey }) => wantedOf(queryKey)?.collection !== undefined });
  }
}

function withoutThese(before: Index, gone: ReadonlySet<string>): Index {
  const groups = without(before.groups, gone);
  const count = (all: readonly Group[]) => all.reduce((sum, each) => sum + each.ids.length, 0);
  return { groups, total: before.total - (count(before.groups) - count(groups)) };
}

function wantedOf(queryKey: readonly unknown[]): Wanted | undefined {
  return queryKey[0] === INDEX || queryKey[0] === keys.gallery[0] ? (queryKey.at(-1) as Wanted) : undefined;
}

const isOfMarks = (queryKey: readonly unknown[]): boolean => wantedOf(queryKey)?.mark !== undefined;

/** What is starred is not rejected, and the other way round. */
export const marked = (item: Item, mark: Mark, isOn: boolean): Item => ({
  ...item,
  ...(isOn && { starred: false, rejected: false }),
  [mark]: isOn,
});

export function useVerbs(): Verbs {
  const client = useQueryClient();
  return useMemo(() => new Verbs(client), [client]);
}
