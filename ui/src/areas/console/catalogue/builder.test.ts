import { describe, expect, it } from "vitest";
import {
  canRemove,
  changeProperty,
  changeType,
  type FormDefinition,
  fixedInputs,
  moveProperty,
  offerInput,
  type Property,
  removeProperty,
} from "./builder";
import { inputOf, previewOf } from "./form-preview";
import { outputNodes } from "./graph";
import { validateProperty } from "./property-validation";
import { slugOf } from "./slugs";
import { readWorkflows } from "./use-workflow-import";

const STEPS: Property = {
  key: "steps",
  type: "number",
  placeholder: "{{STEPS}}",
  default_value: 20,
  user_configurable: true,
  is_whole: true,
};
const built: FormDefinition = {
  graph: {
    "1": { class_type: "LoadImage", inputs: { image: "cat.png" } },
    "2": {
      class_type: "KSampler",
      inputs: { steps: "{{STEPS}}", cfg: 7.5, seed: 18446744073709551615n, image: ["1", 0] },
      _meta: { title: "Sampler" },
    },
    "3": { class_type: "SaveImage", inputs: { images: ["2", 0], filename_prefix: "a {{STEPS}} b" } },
  },
  properties: [STEPS],
};

describe("node inputs", () => {
  it("lists fixed values, not links or placeholders", () => {
    expect(fixedInputs(built).map((each) => `${each.node}.${each.name}`)).toEqual([
      "LoadImage.image",
      "Sampler.cfg",
      "Sampler.seed",
    ]);
  });

  it("become a field with their value as default", () => {
    const next = offerInput(built, "2", "cfg");
    expect(next.graph["2"]?.inputs.cfg).toBe("{{CFG}}");
    expect(next.properties[1]).toMatchObject({
      key: "cfg",
      type: "number",
      default_value: 7.5,
      user_configurable: true,
      label: "Cfg",
    });
    expect(next.properties[1]).not.toHaveProperty("is_whole");
    expect(offerInput(built, "2", "seed").properties[1]).toMatchObject({ default_value: 18446744073709551615n });
  });

  it("get a free key and placeholder", () => {
    const other = { class_type: "KSampler", inputs: { steps: 8, note: "{{STEPS_2}}" } };
    const next = offerInput({ ...built, graph: { ...built.graph, "4": other } }, "4", "steps");
    expect(next.properties[1]).toMatchObject({ key: "steps_2", placeholder: "{{STEPS_2_2}}" });
  });

  it("of loaders become file fields", () => {
    const { properties } = offerInput(built, "1", "image");
    expect(properties[1]).toMatchObject({ type: "image", required: true, is_primary_input: true, default_value: null });
  });

  it("get their value back when removed", () => {
    const { graph, properties } = removeProperty(built, "steps");
    expect(graph["2"]?.inputs.steps).toBe(20);
    expect(graph["3"]?.inputs.filename_prefix).toBe("a 20 b");
    expect(properties).toEqual([]);
  });

  it("cannot be removed without a value", () => {
    expect(canRemove({ ...STEPS, default_value: null })).toBe(false);
    expect(canRemove({ ...STEPS, type: "image", default_value: "path" })).toBe(false);
  });
});

describe("fields", () => {
  const hidden = { ...STEPS, key: "hidden", placeholder: "{{H}}", user_configurable: false };
  const cfg = { ...STEPS, key: "cfg", placeholder: "{{C}}" };

  it("move within visible fields", () => {
    const keysOf = (properties: readonly Property[]) => properties.map((each) => each.key);
    expect(keysOf(moveProperty([STEPS, hidden, cfg], "cfg", -1))).toEqual(["cfg", "steps", "hidden"]);
    expect(keysOf(moveProperty([STEPS, hidden, cfg], "steps", -1))).toEqual(["steps", "hidden", "cfg"]);
  });

  it("have one primary input", () => {
    const files = ["a", "b"].map((key) => ({
      ...STEPS,
      key,
      placeholder: key,
      type: "image",
      is_primary_input: key === "a",
    }));
    const next = changeProperty({ graph: {}, properties: files }, "b", { is_primary_input: true });
    expect(next.properties.map((each) => each.is_primary_input)).toEqual([false, true]);
  });

  it("keep compatible values when the type changes", () => {
    expect(changeType(STEPS, "text")).toMatchObject({ default_value: "20", is_whole: false });
    expect(changeType(STEPS, "choice")).toMatchObject({ default_value: 20, choices: [20] });
    expect(changeType(STEPS, "image")).toMatchObject({ default_value: null });
  });

  it("report their problems", () => {
    expect(validateProperty(STEPS)).toEqual({});
    expect(validateProperty({ ...STEPS, maximum: 10 })).toHaveProperty("default_value");
    expect(validateProperty({ ...STEPS, minimum: 30, maximum: 10 })).toHaveProperty("maximum");
    expect(validateProperty({ ...STEPS, type: "choice", choices: [] })).toHaveProperty("choices");
    expect(validateProperty({ ...STEPS, default_value: null, user_configurable: false })).toHaveProperty(
      "default_value",
    );
  });
});

describe("previewOf", () => {
  const file: Property = {
    key: "image",
    type: "image",
    placeholder: "{{I}}",
    default_value: "asset/path.png",
    required: true,
    is_primary_input: true,
  };

  it("contains user fields and the primary file, with overrides", () => {
    const about = { slug: "old-film", name: "Old film", mime: "video/mp4", tokens: 5 };
    const hidden = { ...STEPS, key: "cfg", user_configurable: false };
    const { properties } = previewOf(about, [file, STEPS, hidden], { steps: 8 });
    expect(properties.map((each) => each.key)).toEqual(["image", "steps"]);
    expect(properties[1]?.default_value).toBe(8);
  });

  it("hides server paths and requires the primary file", () => {
    expect(inputOf(file)).toMatchObject({ default_value: null, required: true });
    expect(inputOf({ ...file, is_primary_input: false })).toMatchObject({ required: false });
  });

  it("derives roles from keys like the server", () => {
    expect(inputOf({ ...STEPS, key: "noise_seed" }).role).toBe("seed");
    expect(inputOf({ ...STEPS, key: "seed_strength" }).role).toBe(null);
  });
});

it("lists last nodes first as output candidates", () => {
  expect(outputNodes(built.graph).map((each) => each.id)).toEqual(["3", "1", "2"]);
});

it("derives slugs from names", () => {
  expect(slugOf("Älter, aber gut (v2).final")).toBe("alter-aber-gut-v2-final");
  expect(slugOf("日本")).toBe("workflow");
});

describe("readWorkflows", () => {
  const json = (name: string, value: unknown) => new File([JSON.stringify(value)], name, { type: "application/json" });

  it("returns workflows and a reason for each rejected file", async () => {
    const files = [
      json("api.json", { "1": { class_type: "SaveImage", inputs: {} } }),
      json("editor.json", { nodes: [] }),
      json("other.json", { a: 1 }),
      new File(["{"], "broken.json"),
      new File([""], "made.png", { type: "image/png" }),
      new File([""], "photo.png", { type: "image/png" }),
      new File([""], "notes.txt", { type: "text/plain" }),
    ];
    const found = await readWorkflows(files, async (file) => (file.name === "made.png" ? { nodes: [] } : null));
    expect(found.graphs.map((each) => each.name)).toEqual(["api.json", "editor.json", "made.png"]);
    expect(found.refused.map((each) => each.name)).toEqual(["other.json", "broken.json", "photo.png", "notes.txt"]);
    expect(new Set(found.refused.map((each) => each.problem)).size).toBe(4);
  });
});
