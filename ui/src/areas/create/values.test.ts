import { expect, test } from "vitest";
import { EMPTY } from "./drafts";
import { validateDraft } from "./form";
import { sectionsOf, withoutHeading } from "./inputs";
import { presetTexts } from "./preset-values";
import { sweepOf } from "./sweep";
import { choice, input, named } from "./test-fixtures";
import { defaultText, describeSize, describeValue, randomSeed, stepValue, validateInput } from "./values";

test("reports problems by field", () => {
  const problems = (texts: Record<string, string>) => validateInput(named(Object.keys(texts)[0] ?? ""), choice, texts);
  expect(problems({ steps: "many" })).toBe("Enter a number.");
  expect(problems({ steps: "1.5" })).toBe("Enter a whole number.");
  expect(problems({ steps: "101" })).toBe("Must be at most 100.");
  expect(problems({ steps: "0" })).toBe("Must be at least 1.");
  expect(problems({ seed: "" })).toBeNull();
  expect(problems({ sampler: "gone" })).toContain("gone");
  const words = input("words", "text", { maximum: 5 });
  expect(validateInput(words, choice, { words: "five5" })).toBeNull();
  expect(validateInput(words, choice, { words: "sixsix" })).toBe("Must have at most 5 characters.");
  expect(validateDraft(choice, EMPTY)).toEqual({ image: "Required." });
});

test("groups models and secondary inputs by node", () => {
  const { wide, main, groups } = sectionsOf(choice);
  expect(wide.map((each) => each.key)).toEqual(["prompt", "negative"]);
  expect(main.map((each) => each.key)).toEqual(["seed", "steps"]);
  expect(groups.map((each) => [each.name, each.inputs.length])).toEqual([
    ["Sampler", 2],
    ["Models", 1],
  ]);
});

test("shows the form of an author in its order", () => {
  const properties = [
    input("size", "number"),
    input("prompt", "text", { role: "prompt" }),
    input("image", "image"),
    input("cfg", "number"),
    input("model", "choice", { role: "model" }),
    input("steps", "number", { role: "steps" }),
  ];
  const { rows, ...others } = sectionsOf({ ...choice, properties });
  expect(rows.map((row) => row.map((each) => each.key))).toEqual([
    ["size"],
    ["prompt"],
    ["image"],
    ["cfg", "model", "steps"],
  ]);
  expect(Object.values(others).flat()).toEqual([]);
});

test("folds a form of more than 60 fields, except for required fields and the first of each role", () => {
  const many = (count: number) => ({
    ...choice,
    properties: [
      ...choice.properties,
      input("steps_2", "number", { role: "steps", group: "Second" }),
      input("key", "text", { required: true, group: "Second" }),
      ...Array.from({ length: count - choice.properties.length - 2 }, (_, at) =>
        input(`x${at}`, "number", { group: "X" }),
      ),
    ],
  });
  const seen = (count: number) => sectionsOf(many(count)).main.map((each) => each.key);
  expect(seen(60)).toEqual(["seed", "steps", "steps_2", "key"]);
  expect(seen(61)).toEqual(["seed", "steps", "key"]);
  expect(sectionsOf(many(61)).files.map((each) => each.key)).toEqual(["image"]);
  expect(sectionsOf(many(61)).groups.find((each) => each.name === "Second")?.inputs).toHaveLength(1);
});

test("offers variations if jobs draw a seed that is not a field", () => {
  const form = { ...choice, properties: [named("prompt")] };
  const three = { ...EMPTY, tries: "3" };
  expect(sweepOf(form, three).tries).toBe(1);
  expect(sweepOf({ ...form, drawsSeed: true }, three).tries).toBe(3);
});

test("scales a default with its source input", () => {
  expect(defaultText(named("switch_at"), choice, { steps: "30" })).toBe("15");
  expect(defaultText(named("switch_at"), choice, { steps: "many" })).toBe("10");
});

test("applies a preset by role and lists values that do not fit", () => {
  expect(presetTexts({ steps: 8, length: 33, sampler: "none" }, choice)).toEqual({
    texts: { steps: "8" },
    ignored: ["length", "sampler"],
  });
});

test("describes sizes, lengths and ranges", () => {
  expect(describeSize(832, 480)).toBe("16:9 · 0.4 MP");
  expect(describeSize(480, 832)).toBe("9:16 · 0.4 MP");
  const length = input("length", "number", { role: "length", default_value: 81 });
  const clip = { ...choice, properties: [length, input("fps", "number", { default_value: 16 })] };
  expect(describeValue(length, clip, {})).toBe("5.1 s");
  const rates = [
    input("load_fps", "number", { default_value: 30 }),
    input("video_fps_2", "number", { default_value: 27 }),
  ];
  expect(describeValue(length, { ...choice, properties: [length, ...rates] }, {})).toBe("3 s");
  expect(describeValue(length, { ...choice, properties: [length] }, {})).toBe("frames");
  const side = input("side", "number", { minimum: 64, maximum: 2048, step: 8, is_whole: true });
  expect(describeValue(side, clip, {})).toBe("64 to 2048, in steps of 8");
});

test("steps numbers within their range", () => {
  expect(stepValue(named("steps"), "100", 1)).toBe("100");
  expect(stepValue(named("steps"), "99", 1)).toBe("100");
  expect(stepValue(named("seed"), "18446744073709551614", 1)).toBe("18446744073709551615");
  expect(stepValue(named("seed"), "1234567890123456", 1)).toBe("1234567890123457");
  expect(stepValue(input("cfg", "number", { step: 0.1 }), "0.2", 1)).toBe("0.3");
  expect(stepValue(named("steps"), "many", 1)).toBe("many");
});

test("draws random seeds within the range of the input", () => {
  expect(randomSeed(input("seed", "number", { role: "seed", maximum: 10 }), () => 0.99)).toBe("9");
});

test("describes whether a seed is fixed", () => {
  expect(describeValue(named("seed"), choice, { seed: "7" })).toBe("locked");
  expect(describeValue(named("seed"), choice, { seed: "" })).toBe("random");
});

test("labels do not repeat the words of their heading, unless they would be ambiguous", () => {
  const under = (heading: string, ...labels: string[]) =>
    withoutHeading(
      heading,
      labels.map((label) => ({ label })),
    ).map(({ label }) => label);
  expect(under("Upscale Image", "Upscale method, upscale image", "Width, upscale image", "Crop")).toEqual([
    "Method",
    "Width",
    "Crop",
  ]);
  expect(under("Sampler", "Sampler", "Steps, refiner")).toEqual(["Sampler", "Steps, refiner"]);
  expect(under("LoRA", "LoRA strength", "Strength")).toEqual(["LoRA strength", "Strength"]);
});
