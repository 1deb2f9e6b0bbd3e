// Gallery queries.

import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import { get } from "@/api/client";
import { GALLERY_LIMIT } from "@/api/prefetch";
import { Problem } from "@/api/problem";
import { keys } from "@/api/queries";
import type { components } from "@/api/schema";
import { type Group, removeOutputs } from "./layout";

type Schemas = components["schemas"];

export type Collection = Schemas["Collection"];

export type AboutJob = Schemas["AboutJob"];

export interface Index {
  groups: readonly Group[];
  total: number;
}

export type Newest = Schemas["GalleryPage"];

export const GROUPINGS = ["day", "batch", "workflow", "prompt"] as const;
export const KINDS = ["image", "video", "audio", "text"] as const;
const MARKS = ["starred", "rejected", "unmarked"] as const;

export type Grouping = (typeof GROUPINGS)[number];
export type Kind = (typeof KINDS)[number];
export type MarkFilter = (typeof MARKS)[number];

/** Filters, order and grouping, as the URL has them. An empty text removes a filter. */
export interface GalleryQuery {
  q?: string;
  workflow?: string;
  batch?: string;
  kind?: Kind | "";
  mark?: MarkFilter | "";
  collection?: string;
  day?: string;
  sort?: "oldest" | "";
  by?: Grouping | "";
}

export const FILTERS = ["q", "workflow", "batch", "kind", "mark", "collection", "day"] as const;
export const NO_FILTER: GalleryQuery = Object.fromEntries(FILTERS.map((each) => [each, ""]));
export const isFiltered = (query: GalleryQuery): boolean => FILTERS.some((each) => query[each]);

/** Reads the search parameters; unknown values are dropped. */
export function parseGalleryQuery(search: Readonly<Partial<Record<keyof GalleryQuery, string>>>): GalleryQuery {
  const { q, workflow, batch, collection, day } = search;
  const kind = KINDS.find((each) => each === search.kind);
  const mark = MARKS.find((each) => each === search.mark);
  const by = GROUPINGS.find((each) => each === search.by);
  return {
    ...(q && { q }),
    ...(workflow && { workflow }),
    ...(batch && { batch }),
    ...(kind && { kind }),
    ...(mark && { mark }),
    ...(collection && { collection }),
    ...(day && { day }),
    ...(search.sort === "oldest" && { sort: "oldest" }),
    ...(by && { by }),
  };
}

const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
export const INDEX = "gallery-index";

function requestQuery({ day, by: _by, kind, mark, sort, ...rest }: GalleryQuery) {
  return {
    ...rest,
    ...(kind && { kind }),
    ...(mark && { mark }),
    ...(sort && { sort }),
    tz: zone,
    ...(day && { from: day, to: day }),
  };
}

export const index = (query: GalleryQuery) =>
  queryOptions({
    queryKey: [INDEX, query] as const,
    queryFn: async ({ signal }): Promise<Index> =>
      get("/api/gallery/index", { query: { ...requestQuery(query), by: query.by || "day" }, signal }),
    placeholderData: keepPreviousData,
  });

/** The newest outputs. Refetched after each event; `useIndex` merges them into the index, which may be long. */
export const newest = (query: GalleryQuery) =>
  queryOptions({
    queryKey: [...keys.gallery, "newest", query] as const,
    queryFn: ({ signal }) => get("/api/gallery", { query: { ...requestQuery(query), limit: GALLERY_LIMIT }, signal }),
    staleTime: 0,
  });

/** Days with outputs, newest first. */
export const days = queryOptions({
  queryKey: [...keys.gallery, "days"] as const,
  queryFn: async ({ signal }) => (await get("/api/gallery/days", { query: { tz: zone }, signal })).days,
});

/** The outputs of a batch by the lists that it combines. */
export const batchGrid = (batch: string) =>
  queryOptions({
    queryKey: [...keys.gallery, "grid", batch] as const,
    queryFn: ({ signal }) => get("/api/batches/{batch_id}/grid", { path: { batch_id: batch }, signal }),
    enabled: batch !== "",
  });

export const collections = queryOptions({
  queryKey: ["collections"] as const,
  queryFn: async ({ signal }) => (await get("/api/collections", { signal })).items,
});

/** Inputs and files of a job; null on a server, which has no such route. */
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

export function removeFromIndex(before: Index, gone: ReadonlySet<string>): Index {
  const groups = removeOutputs(before.groups, gone);
  const count = (all: readonly Group[]) => all.reduce((sum, each) => sum + each.ids.length, 0);
  return { groups, total: before.total - (count(before.groups) - count(groups)) };
}
