// What the assistant asks for and makes. Each step is found again after a reload by what is there.

import { queryOptions } from "@tanstack/react-query";
import { get, here, newKey, post } from "@/api/client";
import { Problem } from "@/api/problem";
import { upload } from "@/api/uploads";
import { setup as texts } from "@/texts/setup";

const REFETCH_MS = 1500;
export const WORKFLOW = "invert-image";
/** Enough for some jobs of the first effect, whatever it costs. */
const JOBS = 20;

export const fleets = queryOptions({
  queryKey: ["setup", "fleets"] as const,
  queryFn: async ({ signal }) => (await get("/api/admin/fleets", { signal })).items,
});

/** Those that can work: who is away, or was shut out, makes no first job. */
export const workers = queryOptions({
  queryKey: ["setup", "workers"] as const,
  queryFn: async ({ signal }) =>
    (await get("/api/admin/workers", { signal })).items.filter(
      ({ state }) => state !== "offline" && state !== "revoked",
    ),
  // it appears by itself
  refetchInterval: REFETCH_MS,
});

export const effects = queryOptions({
  queryKey: ["setup", "effects"] as const,
  queryFn: async ({ signal }) => (await get("/api/admin/effects", { signal })).items,
});

export const joining = (stage: "production" | "staging", slug: string) =>
  queryOptions({
    queryKey: ["setup", "join", stage, slug] as const,
    queryFn: ({ signal }) => get("/api/admin/fleets/{stage}/{slug}/join-command", { path: { stage, slug }, signal }),
  });

export const firstJob = (id: string) =>
  queryOptions({
    queryKey: ["setup", "job", id] as const,
    queryFn: ({ signal }) => get("/api/ai-jobs/{job_id}", { path: { job_id: id }, signal }),
    refetchInterval: ({ state }) => (state.data && isOver(state.data.status) ? false : REFETCH_MS / 2),
  });

/** Nothing where none was run: whoever comes back, or reloads, runs and pays no second one. */
export const newestJob = queryOptions({
  queryKey: ["setup", "newest-job"] as const,
  queryFn: async ({ signal }) => (await get("/api/ai-jobs", { query: { limit: 1 }, signal })).items[0] ?? null,
  refetchInterval: ({ state }) => (state.data && isOver(state.data.status) ? false : REFETCH_MS),
});

export const isOver = (status: string): boolean => ["completed", "failed", "canceled"].includes(status);

/** Needs nothing but nodes that every ComfyUI has. */
const EXAMPLE = {
  slug: WORKFLOW,
  name: texts.effect.named,
  graph: {
    "1": { class_type: "LoadImage", inputs: { image: "{{INPUT}}" } },
    "2": { class_type: "ImageInvert", inputs: { image: ["1", 0] } },
    "3": { class_type: "SaveImage", inputs: { images: ["2", 0], filename_prefix: "inverted" } },
  },
  properties: [
    {
      key: "image",
      type: "image" as const,
      placeholder: "{{INPUT}}",
      required: true,
      user_configurable: true,
      is_primary_input: true,
    },
  ],
  output_node_id: "3",
  output_extension: "png",
  output_mime_type: "image/png",
};

/** Somebody who begins again finds what was made before. */
async function unlessThere(work: Promise<unknown>): Promise<void> {
  try {
    await work;
  } catch (thrown) {
    if (!(thrown instanceof Problem && thrown.status === 409)) throw thrown;
  }
}

export async function makeFleet(slug: string, stage: "production" | "staging"): Promise<void> {
  await unlessThere(post("/api/admin/workflows", { body: EXAMPLE }));
  await unlessThere(post("/api/admin/fleets", { body: { slug, stage, workflow_slugs: [WORKFLOW], force: true } }));
}

export async function makeEffect(name: string, price: number, tenantId: string): Promise<void> {
  const body = { slug: WORKFLOW, name, workflow_slug: WORKFLOW, credits_cost: price };
  // tokens first: once there is an effect, this step counts as done
  if (price > 0) {
    const credits = { amount: JOBS * price, reference: "setup", description: null };
    await unlessThere(post("/api/admin/tenants/{tenant_id}/credits", { path: { tenant_id: tenantId }, body: credits }));
  }
  await unlessThere(post("/api/admin/effects", { body }));
}

/** A picture on which one sees whether something was done to it. */
export async function samplePicture(): Promise<File> {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 512;
  const pen = canvas.getContext("2d");
  if (!pen) throw new Error("no canvas");
  pen.fillStyle = "#20304a";
  pen.fillRect(0, 0, 512, 512);
  ["#f2b134", "#ed553b", "#3caea3", "#f6f4e8"].forEach((colour, number) => {
    pen.fillStyle = colour;
    pen.beginPath();
    pen.arc(140 + number * 78, 140 + number * 70, 84, 0, 2 * Math.PI);
    pen.fill();
  });
  const blob = await new Promise<Blob | null>((done) => canvas.toBlob(done, "image/png"));
  if (!blob) throw new Error("no picture");
  return new File([blob], texts.job.sample, { type: "image/png" });
}

export async function runFirstJob(effectId: number, picture: File): Promise<string> {
  const file = await upload(picture);
  const body = { effect_id: effectId, input_file_id: file.id, idempotency_key: newKey() };
  return (await post("/api/ai-jobs", { body })).data.id;
}

export interface Tried {
  part: string;
  problem: string | null;
}

/** The server tries what it needs, and the browser what it needs, which nobody else can tell. */
export async function checkStorage(): Promise<{ url: string; tried: Tried[] }> {
  const { data } = await post("/api/admin/storage/check");
  const tried: Tried[] = [...data.tried];
  if (!data.upload_url || !data.download_url) return { url: data.url, tried };
  const problem = texts.storage.failedUpload(location.origin);
  const headers = Object.entries(data.upload_headers ?? {}).filter(([name]) => name.toLowerCase() !== "content-length");
  const sent = await fetch(here(data.upload_url), {
    method: "PUT",
    headers: Object.fromEntries(headers),
    body: new Blob([data.upload_text]),
  }).catch(() => null);
  tried.push({ part: "upload", problem: sent?.ok ? null : problem });
  if (!sent?.ok) return { url: data.url, tried };
  const text = await fetch(here(data.download_url))
    .then((each) => each.text())
    .catch(() => null);
  tried.push({ part: "download", problem: text === data.upload_text ? null : problem });
  return { url: data.url, tried };
}

/** What the storage says of its rules does not matter where the browser gets through. */
export const isGood = (tried: readonly Tried[]): boolean =>
  tried.some((each) => each.part === "download") &&
  tried.every((each) => each.part === "browsers" || each.problem === null);
