// Queries of workflows, effects, workers and fleets.

import { queryOptions } from "@tanstack/react-query";
import { call, get, here } from "@/api/client";
import { Problem } from "@/api/problem";
import type { components } from "@/api/schema";
import { send, typeOf } from "@/api/uploads";
import type { Property } from "./builder";
import type { Graph } from "./graph";

type Schemas = components["schemas"];

export type Effect = Schemas["EffectDetails"];
export type Fleet = Schemas["Fleet"];
export type Validated = Schemas["WorkflowValidation"];
export type WorkerCheck = Schemas["WorkerCheck"];
export type Summary = Omit<Schemas["WorkflowSummary"], "properties"> & { properties: Property[] };
export type Workflow = Summary & { graph: Graph; warnings: string[] };

export const keys = {
  workflows: ["console", "workflows"] as const,
  workflow: (slug: string) => ["console", "workflow", slug] as const,
  fitting: (slug: string) => ["console", "workers", "fitting", slug] as const,
  effects: ["console", "effects"] as const,
  effect: (slug: string) => ["console", "effect", slug] as const,
  fleets: ["console", "fleets", "all"] as const,
};

/** Fetches all pages of a list. */
export async function all<T>(
  page: (cursor: string | undefined) => Promise<{ items: T[]; next_cursor?: string | null }>,
) {
  const items: T[] = [];
  let cursor: string | undefined;
  do {
    const found = await page(cursor);
    items.push(...found.items);
    cursor = found.next_cursor ?? undefined;
  } while (cursor);
  return items;
}

const LIMIT = 200;

export const workflows = queryOptions({
  queryKey: keys.workflows,
  queryFn: async ({ signal }) =>
    (await all((cursor) =>
      get("/api/admin/workflows", { query: { limit: LIMIT, ...(cursor && { cursor }) }, signal }),
    )) as unknown as Summary[],
});

export const workflow = (slug: string) =>
  queryOptions({
    queryKey: keys.workflow(slug),
    queryFn: async ({ signal }) =>
      (await get("/api/admin/workflows/{slug}", { path: { slug }, signal })) as unknown as Workflow,
  });

/** Availability on all workers. */
export const fitting = (slug: string) =>
  queryOptions({
    queryKey: keys.fitting(slug),
    queryFn: async ({ signal }): Promise<Validated> => {
      const path = `/api/admin/workflows/${encodeURIComponent(slug)}/validate?limit=${LIMIT}`;
      const ask = async (cursor: string | undefined) =>
        (
          await call<Validated>(
            "POST",
            cursor ? `${path}&cursor=${encodeURIComponent(cursor)}` : path,
            undefined,
            signal,
          )
        ).data;
      let found: Validated | undefined;
      const items = await all<WorkerCheck>(async (cursor) => {
        found = await ask(cursor);
        return found.workers;
      });
      return { ...(found as unknown as Validated), workers: { items, next_cursor: null } };
    },
  });

export const effects = queryOptions({
  queryKey: keys.effects,
  queryFn: ({ signal }): Promise<Effect[]> =>
    all((cursor) => get("/api/admin/effects", { query: { limit: LIMIT, ...(cursor && { cursor }) }, signal })),
});

export const effect = (slug: string) =>
  queryOptions({
    queryKey: keys.effect(slug),
    queryFn: ({ signal }): Promise<Effect> => get("/api/admin/effects/{slug}", { path: { slug }, signal }),
  });

export const fleets = queryOptions({
  queryKey: keys.fleets,
  queryFn: ({ signal }) =>
    all((cursor) =>
      get("/api/admin/fleets", { query: { limit: LIMIT, ...(cursor && { cursor: Number(cursor) }) }, signal }),
    ),
});

/** Uploads a file of an effect or workflow; returns its path. */
export async function uploadAsset(file: File, onProgress?: (part: number) => void): Promise<string> {
  const { data } = await call<Schemas["AssetUpload"]>("POST", "/api/admin/assets", {
    mime_type: typeOf(file),
    size: file.size,
    original_filename: file.name.slice(-255),
  });
  await send(here(data.upload_url), data.upload_headers, file, onProgress ? { onProgress } : {});
  return data.path;
}

const MAX_ATTEMPTS = 50;

/** Uses the first free slug: `portrait`, `portrait-2`. */
export async function createWithFreeSlug<T>(slug: string, make: (slug: string) => Promise<T>): Promise<T> {
  for (let number = 1; ; number += 1) {
    try {
      return await make(number === 1 ? slug : `${slug.slice(0, 96)}-${number}`);
    } catch (thrown) {
      const isTaken = thrown instanceof Problem && thrown.status === 409 && !thrown.missing.length;
      if (!isTaken || number === MAX_ATTEMPTS) throw thrown;
    }
  }
}

export type Version = Omit<Schemas["WorkflowVersion"], "properties"> & { properties: Property[] };

export const versions = (slug: string) =>
  queryOptions({
    queryKey: [...keys.workflow(slug), "versions"] as const,
    queryFn: async ({ signal }) =>
      (await get("/api/admin/workflows/{slug}/versions", { path: { slug }, query: { limit: LIMIT }, signal }))
        .items as unknown as Version[],
  });

export const versionOf = async (slug: string, number: number) =>
  (await get("/api/admin/workflows/{slug}/versions/{number}", { path: { slug, number } })) as unknown as Version & {
    graph: Graph;
  };
