import type { Whole } from "@/api/json";
import type { components } from "@/api/schema";

/** An output. The schemas write seeds as numbers; here they may be `bigint`. */
export type Item = Omit<components["schemas"]["GalleryItem"], "seed"> & { seed: Whole | null };
