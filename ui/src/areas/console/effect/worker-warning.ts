import type { Fleet, WorkerCheck } from "../catalogue/queries";

/** The requirements that the workers of these fleets are missing if none of them can run a workflow; otherwise `null`.
 * An autoscaled fleet without workers may launch a worker that can run it. */
export function missingRequirements(
  workers: readonly Pick<WorkerCheck, "fit" | "missing_node_types" | "missing_models">[],
  fleets: readonly Pick<Fleet, "autoscaling">[],
): readonly string[] | null {
  // a worker that has reported nothing may be able to run it
  if (workers.some(({ fit }) => fit !== "unable")) return null;
  if (!workers.length && fleets.some(({ autoscaling }) => autoscaling !== null)) return null;
  return [...new Set(workers.flatMap((each) => [...each.missing_node_types, ...each.missing_models]))];
}
