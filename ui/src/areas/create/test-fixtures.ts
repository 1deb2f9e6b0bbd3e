import { type Draft, type DraftFile, EMPTY } from "./drafts";
import type { Choice, Input } from "./inputs";

export const input = (key: string, type: string, more: Partial<Input> = {}): Input => ({
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
  is_dynamic_prompt: false,
  label: key,
  group: null,
  ...more,
});

export const choice: Choice = {
  slug: "painter",
  workflowSlug: "painter",
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
  hasFixedPrice: true,
  priceNeedsInput: false,
  drawsSeed: false,
  waiting: null,
  isScript: false,
};
export const file = (name: string): DraftFile => ({
  key: name,
  id: `id-${name}`,
  name,
  mime: "image/png",
  url: null,
  part: 1,
  problem: null,
});
export const draft = (more: Partial<Draft> = {}): Draft => ({
  ...EMPTY,
  files: { image: [file("a.png"), file("b.png")] },
  ...more,
});
export const named = (key: string): Input => choice.properties.find((each) => each.key === key) as Input;
