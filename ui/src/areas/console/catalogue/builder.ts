// What a workflow's form is built by: pure rules, without a page.

import { type Whole, written } from "@/api/json";
import type { Choice, Input } from "@/areas/create/inputs";
import { workflow as texts } from "@/texts/console-workflows";

export interface GraphNode {
  class_type: string;
  inputs: Readonly<Record<string, unknown>>;
  _meta?: { title?: string };
}
export type Graph = Readonly<Record<string, GraphNode>>;

export const TYPES = ["text", "number", "boolean", "choice", "image", "video", "audio"] as const;
export type PropertyType = (typeof TYPES)[number];
export const ROLES = [
  ...(["prompt", "negative_prompt", "input", "seed", "width", "height", "megapixels"] as const),
  ...(["length", "duration", "steps", "strength", "model"] as const),
];

/** As the server keeps it; what is not there is as by default. */
export interface Property {
  key: string;
  type: string;
  placeholder: string;
  default_value?: unknown;
  default_value_hash?: string | null;
  required?: boolean;
  user_configurable?: boolean;
  is_primary_input?: boolean;
  choices?: readonly unknown[];
  minimum?: number | null;
  maximum?: number | null;
  step?: number | null;
  is_whole?: boolean;
  role?: string | null;
  scaled_from?: string | null;
  label?: string | null;
  group?: string | null;
}

/** What is changed together: placeholders in the graph are those of properties. */
export interface Built {
  graph: Graph;
  properties: readonly Property[];
}

const FILES = ["image", "video", "audio"];
export const isFile = (property: Pick<Property, "type">): boolean => FILES.includes(property.type);
const isScalar = (value: unknown): value is string | Whole | boolean =>
  ["string", "number", "bigint", "boolean"].includes(typeof value);

/** What people call a node. */
export const nodeName = (node: GraphNode): string => node._meta?.title?.trim() || node.class_type;

/** An input of a node that has a value, and that nobody may set yet. */
export interface Fixed {
  nodeId: string;
  node: string;
  name: string;
  value: string | Whole | boolean;
}

export function fixedInputs({ graph, properties }: Built): Fixed[] {
  const placeholders = properties.map((each) => each.placeholder);
  return Object.entries(graph).flatMap(([nodeId, node]) =>
    Object.entries(node.inputs).flatMap(([name, value]) => {
      if (!isScalar(value)) return [];
      if (typeof value === "string" && placeholders.some((each) => value.includes(each))) return [];
      return [{ nodeId, node: nodeName(node), name, value }];
    }),
  );
}

const LOADERS: Readonly<Record<string, PropertyType>> = {
  "LoadImage.image": "image",
  "LoadImageMask.image": "image",
  "LoadVideo.file": "video",
  "VHS_LoadVideo.video": "video",
  "LoadAudio.audio": "audio",
};

const firstFree = (name: string, isTaken: (name: string) => boolean): string => {
  for (let number = 1; ; number += 1) {
    const tried = number === 1 ? name : `${name}_${number}`;
    if (!isTaken(tried)) return tried;
  }
};

/** Let users set an input of a node: what it has becomes the default. */
export function offered(built: Built, nodeId: string, name: string): Built {
  const node = built.graph[nodeId];
  const value = node?.inputs[name];
  if (!node || !isScalar(value)) return built;
  const type =
    LOADERS[`${node.class_type}.${name}`] ??
    (typeof value === "boolean" ? "boolean" : typeof value === "string" ? "text" : "number");
  const plain = name.replace(/[^A-Za-z0-9_.-]+/g, "_").slice(0, 90) || "value";
  const key = firstFree(plain, (each) => built.properties.some((one) => one.key === each));
  const text = written(built.graph);
  const word = firstFree(key.toUpperCase(), (each) => text.includes(`{{${each}}}`));
  const hasDefault = !FILES.includes(type);
  const property: Property = {
    key,
    type,
    placeholder: `{{${word}}}`,
    default_value: hasDefault ? value : null,
    required: !hasDefault,
    user_configurable: true,
    is_primary_input: !hasDefault && !built.properties.some((each) => each.is_primary_input),
    ...(typeof value === "bigint" || (typeof value === "number" && Number.isInteger(value)) ? { is_whole: true } : {}),
    label: wordsOf(name),
    group: nodeName(node).slice(0, 200),
  };
  return {
    graph: { ...built.graph, [nodeId]: { ...node, inputs: { ...node.inputs, [name]: property.placeholder } } },
    properties: [...built.properties, property],
  };
}

/** Only what has a value to stay with can be taken out of a form for good. */
export const canTakeOut = (property: Property): boolean =>
  !isFile(property) && property.default_value !== null && property.default_value !== undefined;

/** The default is written into the graph again. */
export function takenOut(built: Built, key: string): Built {
  const gone = built.properties.find((each) => each.key === key);
  if (!gone || !canTakeOut(gone)) return built;
  const filled = (value: unknown): unknown =>
    value === gone.placeholder
      ? gone.default_value
      : typeof value === "string"
        ? value.replaceAll(gone.placeholder, String(gone.default_value))
        : value;
  return {
    graph: Object.fromEntries(
      Object.entries(built.graph).map(([id, node]) => [
        id,
        {
          ...node,
          inputs: Object.fromEntries(Object.entries(node.inputs).map(([name, value]) => [name, filled(value)])),
        },
      ]),
    ),
    properties: built.properties
      .filter((each) => each.key !== key)
      .map((each) => (each.scaled_from === key ? { ...each, scaled_from: null } : each)),
  };
}

export const changed = (built: Built, key: string, part: Partial<Property>): Built => ({
  ...built,
  properties: built.properties.map((each) => {
    if (each.key === key) return { ...each, ...part };
    // there is one that a batch is made of
    return part.is_primary_input ? { ...each, is_primary_input: false } : each;
  }),
});

/** What another type cannot have is left out. */
export function retyped(property: Property, type: PropertyType): Partial<Property> {
  const { default_value: value } = property;
  const kept =
    type === "text" && isScalar(value)
      ? String(value)
      : type === "number" && (typeof value === "number" || typeof value === "bigint")
        ? value
        : type === "boolean" && typeof value === "boolean"
          ? value
          : type === "choice" && isScalar(value)
            ? value
            : null;
  return {
    type,
    default_value: kept,
    role: null,
    scaled_from: null,
    is_primary_input: false,
    ...(type === "choice" ? { choices: kept === null ? [] : [kept] } : { choices: [] }),
    ...(type !== "number" && { minimum: null, maximum: null, step: null, is_whole: false }),
  };
}

/** One place up or down among those that are shown together. */
export function moved(properties: readonly Property[], key: string, by: 1 | -1): Property[] {
  const next = [...properties];
  const from = next.findIndex((each) => each.key === key);
  const mine = next[from];
  if (!mine) return next;
  const isShown = Boolean(mine.user_configurable);
  for (let to = from + by; to >= 0 && to < next.length; to += by) {
    const other = next[to];
    if (other && Boolean(other.user_configurable) === isShown) {
      next.splice(from, 1);
      next.splice(to, 0, mine);
      return next;
    }
  }
  return next;
}

/** `cfg_scale` is "Cfg scale". */
export function wordsOf(key: string): string {
  const words = key.replace(/[_.-]+/g, " ").trim();
  return words.charAt(0).toUpperCase() + words.slice(1);
}

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

/** What it is to people, by its key where nobody said so; as the server has it. */
export function roleOf(property: Property): string | null {
  if (property.role) return property.role;
  if (isFile(property)) return "input";
  if (property.type === "number" && /(?:^|_)seed(?:_\d+)*$/.test(property.key)) return "seed";
  return NAMED[property.type]?.[property.key] ?? null;
}

/** As users get it: by default it is what an effect has set, else what the workflow has. */
export const inputOf = (property: Property, override?: unknown): Input => ({
  key: property.key,
  type: property.type,
  label: property.label || wordsOf(property.key),
  group: property.group ?? null,
  role: roleOf(property),
  required:
    Boolean(property.required) &&
    (Boolean(property.is_primary_input) || (override ?? property.default_value ?? null) === null),
  // the default of a file is a path of the server's
  default_value: isFile(property) ? null : ((override ?? property.default_value ?? null) as Input["default_value"]),
  is_primary_input: Boolean(property.is_primary_input),
  choices: [...(property.choices ?? [])],
  minimum: property.minimum ?? null,
  maximum: property.maximum ?? null,
  step: property.step ?? null,
  is_whole: Boolean(property.is_whole),
  scaled_from: property.scaled_from ?? null,
});

interface Previewed {
  slug: string;
  name: string;
  mime: string;
  tokens: number;
}

/** What a form is shown for, as users will see it; its draft is kept apart from theirs. */
export const previewOf = (
  { slug, name, mime, tokens }: Previewed,
  properties: readonly Property[],
  overrides: Readonly<Record<string, unknown>> = {},
): Choice => ({
  slug: `console:${slug}`,
  name,
  kind: "workflow",
  effectId: null,
  properties: properties
    .filter((each) => each.user_configurable || each.is_primary_input)
    .map((each) => inputOf(each, overrides[each.key])),
  coverUrl: null,
  outputMime: mime,
  tokens,
  waiting: null,
  isScript: false,
});

/** What is wrong with a property, by its field. */
export function problemsWith(property: Property): Partial<Record<keyof Property, string>> {
  const { problems } = texts;
  const found: Partial<Record<keyof Property, string>> = {};
  const { default_value: value, minimum, maximum, step } = property;
  const isNumber = typeof value === "number" || typeof value === "bigint";
  if (property.type === "choice" && !property.choices?.length) found.choices = problems.noChoices;
  if (typeof minimum === "number" && typeof maximum === "number" && minimum > maximum) found.maximum = problems.range;
  if (typeof step === "number" && step <= 0) found.step = problems.step;
  if (property.type === "number" && isNumber) {
    if (typeof minimum === "number" && value < minimum) found.default_value = problems.below;
    if (typeof maximum === "number" && value > maximum) found.default_value = problems.above;
    if (property.is_whole && typeof value === "number" && !Number.isInteger(value))
      found.default_value = problems.whole;
  }
  if (property.type === "choice" && isScalar(value) && property.choices?.length && !property.choices.includes(value))
    found.default_value = problems.notAmong;
  const isSet = property.user_configurable || property.is_primary_input;
  if (!isSet && property.type !== "text" && (value === null || value === undefined))
    found.default_value = problems.noValue;
  return found;
}

export const isSame = (one: unknown, other: unknown): boolean => written(one) === written(other);

/** The nodes that may make the output: those that save, first. */
export function outputNodes(graph: Graph): { id: string; name: string }[] {
  const feeds = new Set(
    Object.values(graph).flatMap((node) =>
      Object.values(node.inputs).flatMap((value) => (Array.isArray(value) ? [String(value[0])] : [])),
    ),
  );
  const isLast = (id: string) => !feeds.has(id);
  return Object.entries(graph)
    .sort(([a], [b]) => Number(isLast(b)) - Number(isLast(a)))
    .map(([id, node]) => ({ id, name: `${nodeName(node)} (${id})` }));
}

/** An address made of a name: `Old Film (v2)` is `old-film-v2`. */
export function slugOf(name: string): string {
  const plain = name
    .normalize("NFKD")
    .replace(/[\u0300-\u036f]/g, "")
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, "-")
    .replace(/^-+|-+$/g, "");
  return plain.slice(0, 100).replace(/-+$/, "") || "workflow";
}

export const isSlug = (text: string): boolean => /^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$/.test(text);
