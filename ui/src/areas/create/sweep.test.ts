import { expect, test } from "vitest";
import { type Draft, EMPTY } from "./drafts";
import { validateDraft } from "./form";
import { batchRequest, isSingleJob } from "./submission";
import {
  axesSummary,
  excerpt,
  expandSweep,
  hasWildcards,
  isCountedByServer,
  itemLabel,
  jobCount,
  sweepOf,
  sweepSummary,
  variationsHint,
} from "./sweep";
import { choice, draft, file, input } from "./test-fixtures";

test("expands every input with every prompt and variation, in server order", () => {
  const lists = sweepOf(choice, draft({ texts: { prompt: "a storm\n\n a calm " }, tries: "3" }));
  expect(jobCount(lists)).toBe(12);
  expect(sweepSummary(lists, "image")).toBe("2 images × 2 prompts × 3 variations");
  const items = expandSweep(lists, 4);
  expect(items.map((each) => itemLabel(each, 3))).toEqual([
    "a · a storm · variation 1",
    "a · a storm · variation 2",
    "a · a storm · variation 3",
    "a · a calm · variation 1",
  ]);
});

test("pairs files and prompts only if there are several of both", () => {
  const two = draft({ texts: { prompt: "a storm\na calm" }, isPairwise: true, tries: "3" });
  expect(sweepSummary(sweepOf(choice, two), "image")).toBe("2 pairs × 3 variations");
  // with one prompt or one image, pairing does not apply
  for (const more of [{ texts: { prompt: "a storm" } }, { files: { image: [file("a.png")] } }]) {
    const back = { ...two, tries: "1", ...more };
    expect(validateDraft(choice, back)).toEqual({});
    expect(jobCount(sweepOf(choice, back))).toBe(2);
    expect(batchRequest(choice, back)).not.toHaveProperty("mode");
  }
  // the server counts the files of a folder
  expect(batchRequest(choice, { ...two, folder: "shots" })).toHaveProperty("mode", "pairwise");
});

test("counts a multi-line prompt once unless each line is a prompt", () => {
  expect(jobCount(sweepOf(choice, draft({ texts: { prompt: "a\nb" }, byLine: false })))).toBe(2);
  const poem = { ...choice, properties: [input("prompt", "text", { role: "prompt", default_value: "a\nb" })] };
  expect(jobCount(sweepOf(poem, EMPTY))).toBe(1);
});

test("cuts labels between words", () => {
  expect(excerpt("one two three", 8)).toBe("one two…");
});

test("warns if variations share a seed", () => {
  const kept: Draft = { ...EMPTY, texts: { seed: "7" } };
  expect(variationsHint(choice, EMPTY)).toBe("each with a new seed");
  expect(variationsHint(choice, { ...kept, seeds: "increment" })).toBe("each with a new seed");
  expect(variationsHint(choice, { ...kept, seeds: "fixed" })).toBe("same seed: all results are identical");
  const seedless = { ...choice, properties: choice.properties.filter((each) => each.key !== "seed") };
  expect(variationsHint(seedless, EMPTY)).toBe("no seed: all results are identical");
});

test("sends swept fields as typed, without their single value", () => {
  const swept = draft({ texts: { steps: "30", seed: "7" }, sweep: { steps: "10,20", seed: "1..3" } });
  const request = batchRequest(choice, swept);
  expect(request).toMatchObject({ sweep: { steps: "10,20", seed: "1..3" }, values: {} });
  expect(request).not.toHaveProperty("seeds");
  expect(isCountedByServer(choice, swept)).toBe(true);
  expect(isSingleJob(choice, { ...swept, files: {} })).toBe(false);
});

test("a swept field that the form no longer has is ignored", () => {
  const one = draft({ files: { image: [file("a.png")] }, sweep: { cfg: "1..8" }, isPairwise: true });
  expect(isCountedByServer(choice, one)).toBe(false);
  expect(isSingleJob(choice, one)).toBe(true);
  expect(batchRequest(choice, one)).not.toHaveProperty("sweep");
  const two = batchRequest(choice, { ...one, sweep: { cfg: "1..8", steps: "10,20" } });
  expect(two.sweep).toEqual({ steps: "10,20" });
  expect(two).not.toHaveProperty("mode");
});

test("pairs swept fields with each other", () => {
  const one = draft({ files: {}, isPairwise: true, sweep: { steps: "10,20" } });
  expect(batchRequest(choice, one)).not.toHaveProperty("mode");
  expect(batchRequest(choice, { ...one, sweep: { steps: "10,20", sampler: "*" } })).toHaveProperty("mode", "pairwise");
});

test("asks for the values of a sweep, and leaves their meaning to the server", () => {
  expect(validateDraft(choice, draft({ sweep: { steps: " " } }))).toHaveProperty("steps");
  expect(validateDraft(choice, draft({ sweep: { steps: "anything" } }))).toEqual({});
});

test("recognizes wildcards, and sends them only if they are switched on", () => {
  for (const text of ["a {red|blue} fox", "__animals/birds__", "a {b|{c|d}}"]) expect(hasWildcards(text)).toBe(true);
  for (const text of ['{"style": "ink"}', "snake_case", "a|b", "__init"]) expect(hasWildcards(text)).toBe(false);
  const typed = draft({ texts: { prompt: "a {red|blue} fox" } });
  expect(batchRequest(choice, typed)).not.toHaveProperty("wildcards");
  expect(batchRequest(choice, { ...typed, wildcards: "all" })).toHaveProperty("wildcards", "all");
});

test("sums up the axes that the server counted", () => {
  const axes = [
    { name: "Steps", count: 3 },
    { name: "Cfg", count: 8 },
  ];
  expect(axesSummary(axes)).toBe("Steps (3) × Cfg (8)");
});
