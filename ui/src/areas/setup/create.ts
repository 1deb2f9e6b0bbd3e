// Creates the first workflow, fleet and effect.

import { post } from "@/api/client";
import { Problem } from "@/api/problem";
import { setup as texts } from "@/texts/setup";

export type Stage = "production" | "staging";

const WORKFLOW = "invert-image";
/** The tenant gets tokens for this many jobs. */
const FREE_JOBS = 20;

/** Uses only nodes that every ComfyUI has. */
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

/** Ignores a conflict: an earlier setup may have created it. */
async function ignoreConflict(work: Promise<unknown>): Promise<void> {
  try {
    await work;
  } catch (thrown) {
    if (!(thrown instanceof Problem && thrown.status === 409)) throw thrown;
  }
}

export async function createFleet(slug: string, stage: Stage): Promise<void> {
  await ignoreConflict(post("/api/admin/workflows", { body: EXAMPLE }));
  await ignoreConflict(post("/api/admin/fleets", { body: { slug, stage, workflow_slugs: [WORKFLOW], force: true } }));
}

export async function createEffect(name: string, price: number, tenantId: string): Promise<void> {
  const body = { slug: WORKFLOW, name, workflow_slug: WORKFLOW, credits_cost: price };
  // tokens first: once the effect exists, this step counts as done
  if (price > 0) {
    const credits = { amount: FREE_JOBS * price, reference: "setup", description: null };
    await ignoreConflict(
      post("/api/admin/tenants/{tenant_id}/credits", { path: { tenant_id: tenantId }, body: credits }),
    );
  }
  await ignoreConflict(post("/api/admin/effects", { body }));
}
