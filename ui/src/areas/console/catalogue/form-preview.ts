import type { Choice, Input } from "@/areas/create/inputs";
import { humanize, isFile, type Property } from "./builder";

const NAMED: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  text: {
    prompt: "prompt",
    positive: "prompt",
    positive_prompt: "prompt",
    negative: "negative_prompt",
    negative_prompt: "negative_prompt",
  },
  number: {
    width: "width",
    height: "height",
    megapixels: "megapixels",
    length: "length",
    frames: "length",
    num_frames: "length",
    duration: "duration",
    seconds: "duration",
    steps: "steps",
    strength: "strength",
    denoise: "strength",
  },
};

/** Explicit role, else derived from the key as on the server. */
export function roleOf(property: Property): string | null {
  if (property.role) return property.role;
  if (isFile(property)) return "input";
  if (property.type === "number" && /(?:^|_)seed(?:_\d+)*$/.test(property.key)) return "seed";
  return NAMED[property.type]?.[property.key] ?? null;
}

/** The field that users see, with the override as default. */
export const inputOf = (property: Property, override?: unknown): Input => ({
  key: property.key,
  type: property.type,
  label: property.label || humanize(property.key),
  group: property.group ?? null,
  role: roleOf(property),
  required:
    Boolean(property.required) &&
    (Boolean(property.is_primary_input) || (override ?? property.default_value ?? null) === null),
  // a file default is a server path
  default_value: isFile(property) ? null : ((override ?? property.default_value ?? null) as Input["default_value"]),
  is_primary_input: Boolean(property.is_primary_input),
  choices: [...(property.choices ?? [])],
  minimum: property.minimum ?? null,
  maximum: property.maximum ?? null,
  step: property.step ?? null,
  is_whole: Boolean(property.is_whole),
  scaled_from: property.scaled_from ?? null,
  is_dynamic_prompt: Boolean(property.is_dynamic_prompt),
});

interface Previewed {
  slug: string;
  name: string;
  mime: string;
  tokens: number;
}

/** The preview form, with a separate draft. */
export const previewOf = (
  { slug, name, mime, tokens }: Previewed,
  properties: readonly Property[],
  overrides: Readonly<Record<string, unknown>> = {},
): Choice => ({
  slug: `console:${slug}`,
  workflowSlug: slug,
  name,
  kind: "workflow",
  effectId: null,
  properties: properties
    .filter((each) => each.user_configurable || each.is_primary_input)
    .map((each) => inputOf(each, overrides[each.key])),
  coverUrl: null,
  outputMime: mime,
  tokens,
  hasFixedPrice: true,
  priceNeedsInput: false,
  drawsSeed: false,
  waiting: null,
  isScript: false,
});
