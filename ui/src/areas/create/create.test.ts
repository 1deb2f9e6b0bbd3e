import { expect, test } from "vitest";
import { Problem } from "@/api/problem";
import { aboutFile } from "@/api/uploads";
import { estimate } from "./asked";
import { countOf, excerpt, itemsOf, labelOf, listsOf, productOf, triesHint } from "./combine";
import {
  changeDraft,
  type Draft,
  draftOf,
  EMPTY,
  type Given,
  readDraft,
  replaceDraft,
  workingOn,
  written,
} from "./drafts";
import { lackingInput, problemsOf, settledBy } from "./form";
import {
  applied,
  type Choice,
  type Input,
  meaningOf,
  problemWith,
  randomSeed,
  sectionsOf,
  sizeInWords,
  stepped,
  unset,
} from "./rules";
import { sortedOut } from "./sorting";
import { deskBatch, errorsByField, folderProblemIn, isSingle, itemBodies, valuesToKeep } from "./submission";

const input = (key: string, type: string, more: Partial<Input> = {}): Input => ({
  key,
  type: type as Input["type"],
  required: false,
  default_value: null,
  is_primary_input: false,
  choices: [],
  minimum: null,
  maximum: null,
  step: null,
  is_whole: false,
  role: null,
  scaled_from: null,
  label: key,
  group: null,
  ...more,
});

const choice: Choice = {
  slug: "painter",
  name: "Painter",
  kind: "workflow",
  effectId: null,
  properties: [
    input("image", "image", { required: true, is_primary_input: true, role: "input" }),
    input("prompt", "text", { role: "prompt", default_value: "a lake" }),
    input("negative", "text", { role: "negative_prompt" }),
    input("seed", "number", { role: "seed", is_whole: true, default_value: 7, minimum: 0 }),
    input("steps", "number", { role: "steps", is_whole: true, default_value: 20, minimum: 1, maximum: 100 }),
    input("switch_at", "number", { is_whole: true, default_value: 10, scaled_from: "steps", group: "Sampler" }),
    input("sampler", "choice", { choices: ["euler", "ddim"], default_value: "euler", group: "Sampler" }),
    input("model", "choice", { choices: ["a.safetensors"], default_value: "a.safetensors", role: "model", group: "X" }),
  ],
  coverUrl: null,
  outputMime: "image/png",
  tokens: 0,
  waiting: null,
  isScript: false,
};
const file = (name: string): Given => ({
  key: name,
  id: `id-${name}`,
  name,
  mime: "image/png",
  url: null,
  part: 1,
  problem: null,
});
const draft = (more: Partial<Draft> = {}): Draft => ({
  ...EMPTY,
  files: { image: [file("a.png"), file("b.png")] },
  ...more,
});
const named = (key: string): Input => choice.properties.find((each) => each.key === key) as Input;

test("every input goes with every prompt, each as often as it is tried, in the order of the server", () => {
  const lists = listsOf(choice, draft({ texts: { prompt: "a storm\n\n a calm " }, tries: "3" }));
  expect(countOf(lists)).toBe(12);
  expect(productOf(lists, "image")).toBe("2 pictures × 2 prompts × 3 tries");
  const items = itemsOf(lists, 4);
  expect(items.map((each) => labelOf(each, 3))).toEqual([
    "a · a storm · try 1",
    "a · a storm · try 2",
    "a · a storm · try 3",
    "a · a calm · try 1",
  ]);
});

test("pair by pair takes as many prompts as files, and says so where it does not have them", () => {
  const two = draft({ texts: { prompt: "a storm\na calm" }, isPairwise: true });
  expect(countOf(listsOf(choice, two))).toBe(2);
  expect(problemsOf(choice, two)).toEqual({});
  const three = draft({ texts: { prompt: "a\nb\nc" }, isPairwise: true });
  expect(problemsOf(choice, three).prompt).toContain("there are 2 and 3");
});

test("pair by pair counts only while there are several of both, and is said as pairs", () => {
  const two = draft({ texts: { prompt: "a storm\na calm" }, isPairwise: true, tries: "3" });
  expect(productOf(listsOf(choice, two), "image")).toBe("2 pairs × 3 tries");
  // back to one prompt, or to one picture: the control is gone, and nothing stands in the way
  for (const more of [{ texts: { prompt: "a storm" } }, { files: { image: [file("a.png")] } }]) {
    const back = { ...two, tries: "1", ...more };
    expect(problemsOf(choice, back)).toEqual({});
    expect(countOf(listsOf(choice, back))).toBe(2);
    expect(deskBatch(choice, back)).not.toHaveProperty("mode");
  }
  // of a folder the server knows how many there are
  expect(deskBatch(choice, { ...two, folder: "shots" })).toHaveProperty("mode", "pairwise");
});

test("a prompt whose lines belong together is one", () => {
  expect(countOf(listsOf(choice, draft({ texts: { prompt: "a\nb" }, byLine: false })))).toBe(2);
  const poem = { ...choice, properties: [input("prompt", "text", { role: "prompt", default_value: "a\nb" })] };
  expect(countOf(listsOf(poem, EMPTY))).toBe(1);
});

test("labels are cut between words", () => {
  expect(excerpt("one two three", 8)).toBe("one two…");
});

test("what was not touched is not sent, and seeds keep their last digit", () => {
  const body = deskBatch(choice, draft({ texts: { seed: "18446744073709551615", steps: "20" } }));
  expect(body).toEqual({
    workflow_slug: "painter",
    values: {},
    input_file_ids: ["id-a.png", "id-b.png"],
    seeds: { mode: "increment", start: 18446744073709551615n },
  });
});

test("one job alone is sent as one", () => {
  const one = draft({ files: { image: [file("a.png")] }, texts: { seed: "5", prompt: "x" } });
  expect(isSingle(choice, one)).toBe(true);
  expect(isSingle(choice, { ...one, outputFolder: "mine" })).toBe(false);
  expect(itemBodies(choice, one)).toEqual([{ input_payload: { seed: 5, prompt: "x" }, input_file_id: "id-a.png" }]);
});

test("seeds of several tries count up exactly, wherever they begin", () => {
  const many = draft({ files: { image: [file("a.png")] }, texts: { seed: "9007199254740990" }, tries: "4" });
  expect(itemBodies(choice, many).map((each) => String(each.input_payload.seed))).toEqual([
    "9007199254740990",
    "9007199254740991",
    "9007199254740992",
    "9007199254740993",
  ]);
});

test("a draft comes back as it was left, without what was still on its way", () => {
  const left = draft({ texts: { steps: "many" }, tries: "x" });
  const sending = { ...left, files: { image: [file("a.png"), { ...file("b.png"), id: null }] } };
  const back = readDraft(written(sending));
  expect(back.texts).toEqual({ steps: "many" });
  expect(back.tries).toBe("x");
  expect(back.files.image?.map((each) => each.name)).toEqual(["a.png"]);
  expect(readDraft("{broken")).toEqual(EMPTY);
  expect(readDraft('{"other": 1}')).toEqual(EMPTY);
});

test("what is wrong is said by field", () => {
  const said = (texts: Record<string, string>) => problemWith(named(Object.keys(texts)[0] ?? ""), choice, texts);
  expect(said({ steps: "many" })).toBe("This must be a number.");
  expect(said({ steps: "1.5" })).toBe("This must be a whole number.");
  expect(said({ steps: "101" })).toBe("This must be at most 100.");
  expect(said({ steps: "0" })).toBe("This must be at least 1.");
  expect(said({ seed: "" })).toBeNull();
  expect(said({ sampler: "gone" })).toContain("gone");
  expect(problemsOf(choice, EMPTY)).toEqual({ image: "This is required." });
});

test("errors of the server find their fields", () => {
  expect(errorsByField(choice, { "items.3.steps": "no", input_file_id: "gone", "notify_urls.0": "bad" })).toEqual({
    steps: "no",
    image: "gone",
    notify_urls: "bad",
  });
});

test("main fields come first, models and the rest are folded by node", () => {
  const { wide, main, groups } = sectionsOf(choice);
  expect(wide.map((each) => each.key)).toEqual(["prompt", "negative"]);
  expect(main.map((each) => each.key)).toEqual(["seed", "steps"]);
  expect(groups.map((each) => [each.name, each.inputs.length])).toEqual([
    ["Sampler", 2],
    ["Models", 1],
  ]);
});

test("what follows another value keeps its part of it", () => {
  expect(unset(named("switch_at"), choice, { steps: "30" })).toBe("15");
  expect(unset(named("switch_at"), choice, { steps: "many" })).toBe("10");
});

test("a preset means the same by role, and says what it does not mean", () => {
  expect(applied({ steps: 8, length: 33, sampler: "none" }, choice)).toEqual({
    texts: { steps: "8" },
    ignored: ["length", "sampler"],
  });
});

test("values are told in words", () => {
  expect(sizeInWords(832, 480)).toBe("16:9 · 0.4 MP");
  expect(sizeInWords(480, 832)).toBe("9:16 · 0.4 MP");
  const length = input("length", "number", { role: "length", default_value: 81 });
  const clip = { ...choice, properties: [length, input("fps", "number", { default_value: 16 })] };
  expect(meaningOf(length, clip, {})).toBe("5.1 s");
  const side = input("side", "number", { minimum: 64, maximum: 2048, step: 8, is_whole: true });
  expect(meaningOf(side, clip, {})).toBe("64 to 2048, in steps of 8");
});

test("arrow keys go by the steps of the node, within its range", () => {
  expect(stepped(named("steps"), "100", 1)).toBe("100");
  expect(stepped(named("steps"), "99", 1)).toBe("100");
  expect(stepped(named("seed"), "18446744073709551614", 1)).toBe("18446744073709551615");
  expect(stepped(named("seed"), "1234567890123456", 1)).toBe("1234567890123457");
  expect(stepped(input("cfg", "number", { step: 0.1 }), "0.2", 1)).toBe("0.3");
  expect(stepped(named("steps"), "many", 1)).toBe("many");
});

test("a seed by chance is one that the node takes", () => {
  expect(randomSeed(input("seed", "number", { role: "seed", maximum: 10 }), () => 0.99)).toBe("9");
});

test("what a draft is replaced by can be taken back, unless there was nothing", () => {
  expect(replaceDraft("painter", draft())).toBeNull();
  changeDraft("painter", (before) => ({ ...before, texts: { prompt: "an hour of work" } }));
  const undo = replaceDraft("painter", EMPTY);
  expect(draftOf("painter").texts).toEqual({});
  undo?.();
  expect(draftOf("painter").texts).toEqual({ prompt: "an hour of work" });
});

test("a preset has what was changed, without files and the prompts of a batch", () => {
  const texts = { prompt: "a storm\na calm", steps: "30", seed: "18446744073709551615", sampler: "euler" };
  expect(valuesToKeep(choice, draft({ texts }))).toEqual({ steps: 30, seed: 18446744073709551615n });
  expect(valuesToKeep(choice, draft({ texts: { prompt: "a storm" } }))).toEqual({ prompt: "a storm" });
  expect(valuesToKeep(choice, draft({ texts: { seed: "" }, idleSeeds: { seed: "7" } }))).toEqual({});
});

test("a seed says whether it is kept", () => {
  expect(meaningOf(named("seed"), choice, { seed: "7" })).toBe("kept");
  expect(meaningOf(named("seed"), choice, { seed: "" })).toBe("new each time");
});

test("of what is dropped together every workflow and all media are taken, and the rest is named", async () => {
  const json = (name: string, content: unknown) => new File([JSON.stringify(content)], name);
  const shot = new File(["x"], "a.png", { type: "image/png" });
  const saved = json("saved.json", { nodes: [], links: [] });
  const api = json("API.JSON", { "1": { class_type: "SaveImage", inputs: {} } });
  const files = [
    json("a.json", { camera: { iso: 100 } }),
    shot,
    saved,
    api,
    new File(["{"], "b.json"),
    json("n.txt", 1),
  ];
  const { graphs, media, broken, left } = await sortedOut(files);
  expect(graphs.map((each) => each.name)).toEqual(["saved.json", "API.JSON"]);
  expect(media).toEqual([shot]);
  expect([broken, left]).toEqual([[], ["a.json", "b.json", "n.txt"]]);
  // one alone is taken for a workflow: the server says why it is none
  expect((await sortedOut([json("a.json", { camera: 1 })])).strange).toEqual(["a.json"]);
  expect((await sortedOut([new File(["{"], "b.json")])).broken).toEqual(["b.json"]);
});

test("an output that is used as the input is all that is worked on, once", () => {
  const before: Draft = { ...EMPTY, folder: "mine", tries: "3", files: { image: [file("old.png")] }, label: "kept" };
  const next = workingOn(before, "image", file("made.png"));
  expect(countOf(listsOf(choice, next))).toBe(1);
  expect(deskBatch(choice, next)).toMatchObject({ input_file_ids: ["id-made.png"], label: "kept" });
  expect(deskBatch(choice, next)).not.toHaveProperty("input_subdir");
});

test("a tab keeps its own draft while another one writes over the shared one", () => {
  changeDraft("tabs", () => ({ ...EMPTY, label: "mine" }));
  localStorage.setItem("comfyrelay.create.draft.tabs", written({ ...EMPTY, label: "theirs" }));
  expect(readDraft(sessionStorage.getItem("comfyrelay.create.draft.tabs")).label).toBe("mine");
});

test("the same again is told to come out alike where no seed differs", () => {
  const kept: Draft = { ...EMPTY, texts: { seed: "7" } };
  expect(triesHint(choice, EMPTY)).toBe("each with another seed");
  expect(triesHint(choice, { ...kept, seeds: "increment" })).toBe("each with another seed");
  expect(triesHint(choice, { ...kept, seeds: "fixed" })).toBe("same seed: all come out the same");
  const seedless = { ...choice, properties: choice.properties.filter((each) => each.key !== "seed") };
  expect(triesHint(seedless, EMPTY)).toBe("no seed: all come out the same");
});

test("the picture that must be given is asked for until it is there, or a folder is named", () => {
  expect(lackingInput(choice, EMPTY)?.key).toBe("image");
  expect(lackingInput(choice, { ...EMPTY, files: { image: [{ ...file("a.png"), problem: "no" }] } })?.key).toBe(
    "image",
  );
  expect(lackingInput(choice, { ...EMPTY, files: { image: [file("a.png")] } })).toBeUndefined();
  expect(lackingInput(choice, { ...EMPTY, folder: "" })).toBeUndefined();
});

test("what is wrong with a folder is over when another one is typed", () => {
  expect(settledBy(choice, { folder: "mine" })).toContain("image");
  expect(settledBy(choice, { label: "a" })).not.toContain("image");
  expect(folderProblemIn({ errors: { input_subdir: "It cannot be read." } })).toBe("It cannot be read.");
});

test("a file that is too large is named with its size and the limit", () => {
  const refused = new Problem("The file is too large: at most 2147483648 bytes are allowed.", 413);
  const told = aboutFile({ name: "huge.png", size: 6e9 }, refused) as Problem;
  expect(told.message).toBe("huge.png is 6.0 GB; the limit is 2.1 GB.");
});

test("JSON that is no workflow is told from one, also alone", async () => {
  const named = async (content: unknown) => {
    const { graphs, strange } = await sortedOut([new File([JSON.stringify(content)], "a.json")]);
    return [graphs.length, strange.length];
  };
  expect(await named({ a: 1 })).toEqual([0, 1]);
  expect(await named({ prompt: { "1": { class_type: "X" } } })).toEqual([1, 0]);
});

test("when it will be done is asked anew each minute", () => {
  expect(estimate({ values: {} }).refetchInterval).toBe(60_000);
});
