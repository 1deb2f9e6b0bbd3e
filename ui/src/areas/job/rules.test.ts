import { describe, expect, it } from "vitest";
import type { AboutJob, InputValue, Job } from "@/api/types";
import { callOf, commandOf, explainError, howFar, shownOf, sortedValues, titleOf } from "./rules";

const value = (key: string, more: Partial<InputValue> = {}): InputValue => ({
  key,
  label: key,
  type: "text",
  value: key,
  url: null,
  is_default: false,
  role: null,
  ...more,
});
const about = (inputs: InputValue[]): AboutJob => ({
  workflow_slug: "portrait",
  workflow_name: "Portrait",
  inputs,
  error_detail: null,
  attempts: [],
  output_metadata: null,
  files: [],
  deleted_with_it: [],
});
const job = { id: "1", workflow_slug: "portrait", effect_id: null, input_file_id: null } as unknown as Job;

describe("an error", () => {
  it("is told as its cause, what to do, and the whole of it", () => {
    const detail = JSON.stringify({ exception_type: "OOM", exception_message: "no", traceback: ["line 1"], node: 3 });
    const explained = explainError("The GPU ran out of memory.", detail);
    expect(explained.cause).toBe("The GPU ran out of memory.");
    expect(explained.advice).toContain("fewer pixels");
    expect(explained.details).toContain("OOM: no\nline 1");
  });

  it("that says what to do itself is not advised beside it", () => {
    expect(explainError("The sides differ. Use one size.", null)).toEqual({
      cause: "The sides differ.",
      advice: "Use one size.",
      details: null,
    });
  });
});

it("says how far a job is in the words of its worker", () => {
  expect(howFar({ value: 0.5, node: "KSampler", step: 10, steps: 20 }, 41)).toEqual({
    part: 0.5,
    words: "KSampler · step 10 of 20 · 41 s left",
  });
  expect(howFar(null)).toEqual({ part: null, words: "Starting…" });
});

it("shows what was changed, and folds what was not where there is much", () => {
  const many = Array.from({ length: 9 }, (_each, index) => value(`d${index}`, { is_default: true }));
  const { shown, rest } = sortedValues([...many, value("steps"), value("p", { role: "prompt", is_default: true })]);
  expect(shown.map((each) => each.key)).toEqual(["steps", "p"]);
  expect(rest).toHaveLength(9);
});

describe("a job for elsewhere", () => {
  const inputs = [
    value("image", { url: "/files/1", value: "my cat.png", role: "input", file_id: "f1" }),
    value("mask", { url: "/files/2", value: "mask.png", role: "input", file_id: "f2" }),
    value("prompt", { value: "it's a lake" }),
    value("seed", { value: 18446744073709551615n }),
    value("steps", { value: 20, is_default: true }),
  ];

  it("is a command with its values, quoted as a shell needs it", () => {
    expect(commandOf(job, about(inputs))).toBe(
      "comfyrelay run portrait --set image=f1 --set mask=f2 --set 'prompt=it'\\''s a lake' " +
        "--set seed=18446744073709551615",
    );
    expect(commandOf(job, null)).toBe("comfyrelay rerun 1");
  });

  it("names a file that is nobody's own as it is called, for want of better", () => {
    const [image] = inputs as [InputValue];
    expect(commandOf(job, about([{ ...image, file_id: null }]))).toBe("comfyrelay run portrait --input 'my cat.png'");
  });

  it("is a call whose seeds keep their last digit, with all its files, that says which token it needs", () => {
    const text = callOf({ ...job, input_file_id: "f1" }, about(inputs), "http://here", "k");
    expect(text).toContain('"seed": 18446744073709551615');
    expect(text).toContain('"mask": "f2"');
    expect(text).toContain('"input_file_id": "f1"');
    expect(text).not.toContain('"image"');
    expect(text).toContain("POST /api/tokens");
    expect(text).toContain('"Authorization: Bearer $COMFYRELAY_TOKEN"');
  });
});

it("offers what is shown of several outputs, and only what the queue keeps as an input", () => {
  const output = (name: string) => ({ url: `/files/${name}`, filename: name, mime_type: "image/png" });
  const two = { ...job, outputs: [output("a.png"), output("b.png")] } as unknown as Job;
  const beside = { url: "/files/c", name: "c.png", mime_type: "image/png", is_output: false };
  const known = { ...about([]), files: [beside] } as unknown as AboutJob;
  expect([0, 1, 2].map((at) => shownOf(two, known, at))).toEqual([
    { url: "/files/a.png", name: "a.png", number: 1 },
    { url: "/files/b.png", name: "b.png", number: 2 },
    { url: "/files/c", name: "c.png", number: null },
  ]);
  expect(shownOf({ ...job, outputs: [] } as unknown as Job, null, 0)).toBeNull();
});

it("a job without a label is called by its prompt, or by what it runs", () => {
  const named = { label: "photo_00 · try 1", prompt: "a lake", workflow_name: "Painter" };
  expect(titleOf(named)).toBe("photo_00 · try 1");
  expect(titleOf({ ...named, label: null })).toBe("a lake");
  expect(titleOf({ ...named, label: null, prompt: null })).toBe("Painter");
});
