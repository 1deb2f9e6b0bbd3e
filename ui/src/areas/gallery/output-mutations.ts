import { type QueryClient, useQueryClient } from "@tanstack/react-query";
import { useMemo } from "react";
import { type BodyOf, patch, post, remove } from "@/api/client";
import { keys } from "@/api/queries";
import type { Item } from "./item";
import { items } from "./item-store";
import {
  type Collection,
  collections,
  type GalleryQuery,
  INDEX,
  type Index,
  type Newest,
  removeFromIndex,
} from "./queries";

/** Limit of the API. */
const MAX_IDS_PER_REQUEST = 2000;

const parts = (ids: readonly string[]): string[][] =>
  Array.from({ length: Math.ceil(ids.length / MAX_IDS_PER_REQUEST) }, (_each, at) =>
    ids.slice(at * MAX_IDS_PER_REQUEST, (at + 1) * MAX_IDS_PER_REQUEST),
  );

export type Mark = "starred" | "rejected";

type Marks = Omit<BodyOf<"/api/gallery/marks", "post">, "ids">;

export interface Deleted {
  deleted: number;
  not_deleted: string[];
  refused: number;
}

/** Optimistic changes to outputs, rolled back if the server refuses. */
export class OutputMutations {
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
    // lists filtered by mark changed
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
    const done: Deleted = { deleted: 0, not_deleted: [], refused: 0 };
    for (const some of parts(ids)) {
      const { data } = await post("/api/gallery/delete", { body: { ids: some, keep_files: keepFiles } });
      done.deleted += data.deleted.length;
      done.not_deleted.push(...data.not_deleted);
      done.refused += data.refused.length;
      const gone = new Set([...data.deleted, ...data.missing]);
      // first, or deleted outputs would count as new
      this.client.setQueriesData<Newest>({ queryKey: [...keys.gallery, "newest"] }, (before) => {
        if (!before) return before;
        const left = before.items.filter((each) => !gone.has(each.id));
        return { ...before, items: left, total: before.total - (before.items.length - left.length) };
      });
      this.client.setQueriesData<Index>({ queryKey: [INDEX] }, (before) =>
        before ? removeFromIndex(before, gone) : before,
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
    void this.client.invalidateQueries({
      predicate: ({ queryKey }) => galleryQueryOf(queryKey)?.collection !== undefined,
    });
  }
}

function galleryQueryOf(queryKey: readonly unknown[]): GalleryQuery | undefined {
  return queryKey[0] === INDEX || queryKey[0] === keys.gallery[0] ? (queryKey.at(-1) as GalleryQuery) : undefined;
}

const isOfMarks = (queryKey: readonly unknown[]): boolean => galleryQueryOf(queryKey)?.mark !== undefined;

/** Starred and rejected exclude each other. */
export const marked = (item: Item, mark: Mark, isOn: boolean): Item => ({
  ...item,
  ...(isOn && { starred: false, rejected: false }),
  [mark]: isOn,
});

export function useOutputMutations(): OutputMutations {
  const client = useQueryClient();
  return useMemo(() => new OutputMutations(client), [client]);
}
