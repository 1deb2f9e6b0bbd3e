import { expect, it } from "vitest";
import { machineChangesOf, machinesDraftOf, validateMachines } from "./machines-draft";

const stored = {
  provider: "command",
  image: "comfyui:1",
  slots: 2,
  instance_types: [{ name: "rtx4090", price_per_hour: 0.5, speed: 1 }],
  bundle: { node_types: ["KSampler"], models: ["sdxl.safetensors"] },
  options: { command: "rented-gpus" },
};

it("sends only changed fields", () => {
  const before = machinesDraftOf(stored);
  expect(machineChangesOf(before, before)).toBeNull();
  expect(machineChangesOf(before, { ...before, image: " ", models: "a\n\n a \nb" })).toEqual({
    image: null,
    bundle: { node_types: ["KSampler"], models: ["a", "b"] },
  });
  expect(machineChangesOf(before, { ...before, options: '{"command": "x"}', nodes: "", models: "" })).toEqual({
    options: { command: "x" },
    bundle: null,
  });
});

it("shows a fleet without settings as one whose machines already exist", () => {
  const before = machinesDraftOf(null);
  expect(before).toMatchObject({ provider: "static", slots: 1, options: "" });
  expect(machineChangesOf(before, { ...before, provider: "local" })).toEqual({ provider: "local" });
});

it("rejects options that are not a JSON object, and types without a unique name", () => {
  const before = machinesDraftOf(stored);
  expect(validateMachines(before)).toEqual({});
  for (const options of ["{", "[]", "1", "null"]) {
    expect(Object.keys(validateMachines({ ...before, options }))).toEqual(["options"]);
  }
  const [type] = stored.instance_types;
  const types = [type, type, { ...type, name: "" }] as (typeof stored)["instance_types"];
  expect(Object.keys(validateMachines({ ...before, instance_types: types }))).toEqual([
    "instance_types.1.name",
    "instance_types.2.name",
  ]);
});
