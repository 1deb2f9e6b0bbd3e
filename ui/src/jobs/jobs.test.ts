import { describe, expect, it } from "vitest";
import type { AboutJob, InputValue, Job } from "@/api/types";
import { explainError } from "./errors";
import { sortedValues } from "./inputs";
import { jobTitle } from "./job";
import { selectedFile } from "./outputs";
import { describeProgress, leftText } from "./progress";
import { curlCommand, shellCommand } from "./rerun";

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
  copies: {},
});
const job = { id: "1", workflow_slug: "portrait", effect_id: null, input_file_id: null } as unknown as Job;

describe("a job error", () => {
  it("is split into cause, advice and details", () => {
    const detail = JSON.stringify({ exception_type: "OOM", exception_message: "no", traceback: ["line 1"], node: 3 });
    const explained = explainError("The GPU ran out of memory.", detail);
    expect(explained.cause).toBe("The GPU ran out of memory.");
    expect(explained.advice).toContain("Reduce the resolution");
    expect(explained.details).toContain("OOM: no\nline 1");
  });

  it("that includes advice gets no other advice", () => {
    expect(explainError("The sides differ. Use one size.", null)).toEqual({
      cause: "The sides differ.",
      advice: "Use one size.",
      details: null,
    });
  });
});

it("progress shows the node, step and remaining time that the worker reports", () => {
  expect(describeProgress({ value: 0.5, node: "KSampler", step: 10, steps: 20 }, 41)).toEqual({
    value: 0.5,
    text: "KSampler · step 10 of 20 · 41 s left",
  });
  expect(describeProgress(null)).toEqual({ value: null, text: "Starting…" });
});

it("a job beyond its usual time is almost done only in its last steps", () => {
  const textOf = (step: number) => describeProgress({ value: 0.5, step, steps: 30 }, 0).text;
  expect([textOf(2), textOf(29)]).toEqual(["step 2 of 30 · longer than usual", "step 29 of 30 · almost done"]);
  expect([leftText(0, 0.51), leftText(0, 0.9), leftText(12, 0.1)]).toEqual([
    "longer than usual",
    "almost done",
    "12 s left",
  ]);
  expect(describeProgress({ value: 0.5, node: "VAEDecode" }, 0).text).toBe("VAEDecode · almost done");
});

it("estimated progress is marked as such", () => {
  expect(describeProgress({ value: 0.45, is_estimated: true }, 55)).toEqual({
    value: 0.45,
    text: "about 45 %, estimated · 55 s left",
    isEstimated: true,
  });
});

it("default values are folded if there are many values", () => {
  const many = Array.from({ length: 9 }, (_each, index) => value(`d${index}`, { is_default: true }));
  const { shown, rest } = sortedValues([...many, value("steps"), value("p", { role: "prompt", is_default: true })]);
  expect(shown.map((each) => each.key)).toEqual(["steps", "p"]);
  expect(rest).toHaveLength(9);
});

describe("running a job again", () => {
  const inputs = [
    value("image", { url: "/files/1", value: "my cat.png", role: "input", file_id: "f1" }),
    value("mask", { url: "/files/2", value: "mask.png", role: "input", file_id: "f2" }),
    value("prompt", { value: "it's a lake" }),
    value("seed", { value: 18446744073709551615n }),
    value("steps", { value: 20, is_default: true }),
  ];

  it("offers a shell command with all changed values, quoted", () => {
    expect(shellCommand(job, about(inputs))).toBe(
      "comfyrelay run portrait --set image=f1 --set mask=f2 --set 'prompt=it'\\''s a lake' " +
        "--set seed=18446744073709551615",
    );
    expect(shellCommand(job, null)).toBe("comfyrelay rerun 1");
  });

  it("names a file without an id by its file name", () => {
    const [image] = inputs as [InputValue];
    expect(shellCommand(job, about([{ ...image, file_id: null }]))).toBe(
      "comfyrelay run portrait --input 'my cat.png'",
    );
  });

  it("offers a curl command with all digits of a seed, all files and a note about the token", () => {
    const text = curlCommand({ ...job, input_file_id: "f1" }, about(inputs), "http://here", "k");
    expect(text).toContain('"seed": 18446744073709551615');
    expect(text).toContain('"mask": "f2"');
    expect(text).toContain('"input_file_id": "f1"');
    expect(text).not.toContain('"image"');
    expect(text).toContain("POST /api/tokens");
    expect(text).toContain('"Authorization: Bearer $COMFYRELAY_TOKEN"');
  });
});

it("only media can become an input, identified by a number that does not change when others are deleted", () => {
  const output = (name: string, number: number, mime_type = "image/png") => ({
    url: `/files/${name}`,
    filename: name,
    number,
    mime_type,
  });
  const three = { ...job, outputs: [output("b.png", 2), output("d.png", 4), output("e.txt", 5, "text/plain")] };
  expect([0, 1, 2].map((at) => selectedFile(three as unknown as Job, at))).toEqual([
    { url: "/files/b.png", name: "b.png", number: 2 },
    { url: "/files/d.png", name: "d.png", number: 4 },
    { url: "/files/e.txt", name: "e.txt", number: null },
  ]);
  expect(selectedFile({ ...job, outputs: [] } as unknown as Job, 0)).toBeNull();
});

it("a job without a label is named after its prompt or its workflow", () => {
  const named = { label: "photo_00 · try 1", prompt: "a lake", workflow_name: "Painter" };
  expect(jobTitle(named)).toBe("photo_00 · try 1");
  expect(jobTitle({ ...named, label: null })).toBe("a lake");
  expect(jobTitle({ ...named, label: null, prompt: null })).toBe("Painter");
});
