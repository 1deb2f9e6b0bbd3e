import { expect, it } from "vitest";
import type { Fleet } from "../catalogue/queries";
import { cannotRun } from "./worker-warning";

const worker = (fit: "able" | "unable" | "unknown", models: string[] = []) => ({
  fit,
  missing_node_types: [],
  missing_models: models,
});
const fixed = { autoscaling: null };
const scaled = { autoscaling: {} as Fleet["autoscaling"] };

it("names what all workers are missing", () => {
  expect(cannotRun([worker("unable", ["wan.safetensors"]), worker("unable", ["wan.safetensors"])], [fixed])).toEqual([
    "wan.safetensors",
  ]);
});

it("warns without any worker, unless a fleet launches one", () => {
  expect(cannotRun([], [fixed])).toEqual([]);
  expect(cannotRun([], [fixed, scaled])).toBeNull();
});

it("does not warn if one worker can, or has not reported", () => {
  expect(cannotRun([worker("unable", ["a"]), worker("able")], [fixed])).toBeNull();
  expect(cannotRun([worker("unknown")], [fixed])).toBeNull();
});
