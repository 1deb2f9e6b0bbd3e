import { expect, it } from "vitest";
import type { Fleet } from "../catalogue/queries";
import { missingRequirements } from "./worker-warning";

const worker = (fit: "able" | "unable" | "unknown", models: string[] = []) => ({
  fit,
  missing_node_types: [],
  missing_models: models,
});
const fixed = { autoscaling: null };
const scaled = { autoscaling: {} as Fleet["autoscaling"] };

it("names the requirements that all workers are missing", () => {
  expect(
    missingRequirements([worker("unable", ["wan.safetensors"]), worker("unable", ["wan.safetensors"])], [fixed]),
  ).toEqual(["wan.safetensors"]);
});

it("warns if there is no worker, unless a fleet can launch one", () => {
  expect(missingRequirements([], [fixed])).toEqual([]);
  expect(missingRequirements([], [fixed, scaled])).toBeNull();
});

it("does not warn if a worker can run the workflow or has not reported yet", () => {
  expect(missingRequirements([worker("unable", ["a"]), worker("able")], [fixed])).toBeNull();
  expect(missingRequirements([worker("unknown")], [fixed])).toBeNull();
});
