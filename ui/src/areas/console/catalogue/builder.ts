// Form definition of a workflow: pure functions.

import { stringify, type Whole } from "@/api/json";
import { type Graph, nodeName } from "./graph";

export const TYPES = ["text", "number", "boolean", "choice", "image", "video", "audio"] as const;

export type PropertyType = (typeof TYPES)[number];

export const ROLES = [
  ...(["prompt", "negative_prompt", "input", "seed", "width", "height", "megapixels"] as const),
  ...(["length", "duration", "steps", "strength", "model"] as const),
];

/** As stored by the server; missing fields have defaults. */
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
  is_dynamic_prompt?: boolean;
  label?: string | null;
  group?: string | null;
}

/** Graph and properties change together: the graph contains the placeholders. */
export interface FormDefinition {
  graph: Graph;
  properties: readonly Property[];
}

const FILES = ["image", "video", "audio"];

export const isFile = (property: Pick<Property, "type">): boolean => FILES.includes(property.type);

export const isScalar = (value: unknown): value is string | Whole | boolean =>
  ["string", "number", "bigint", "boolean"].includes(typeof value);

/** A node input with a fixed value. */
export interface FixedInput {
  nodeId: string;
  node: string;
  name: string;
  value: string | Whole | boolean;
}

export function fixedInputs({ graph, properties }: FormDefinition): FixedInput[] {
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

const firstFreeName = (name: string, isTaken: (name: string) => boolean): string => {
  for (let number = 1; ; number += 1) {
    const tried = number === 1 ? name : `${name}_${number}`;
    if (!isTaken(tried)) return tried;
  }
};

/** Turns a node input into a field; its value becomes the default. */
export function offerInput(built: FormDefinition, nodeId: string, name: string): FormDefinition {
  const node = built.graph[nodeId];
  const value = node?.inputs[name];
  if (!node || !isScalar(value)) return built;
  const type =
    LOADERS[`${node.class_type}.${name}`] ??
    (typeof value === "boolean" ? "boolean" : typeof value === "string" ? "text" : "number");
  const plain = name.replace(/[^A-Za-z0-9_.-]+/g, "_").slice(0, 90) || "value";
  const key = firstFreeName(plain, (each) => built.properties.some((one) => one.key === each));
  const text = stringify(built.graph);
  const word = firstFreeName(key.toUpperCase(), (each) => text.includes(`{{${each}}}`));
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
    label: humanize(name),
    group: nodeName(node).slice(0, 200),
  };
  return {
    graph: { ...built.graph, [nodeId]: { ...node, inputs: { ...node.inputs, [name]: property.placeholder } } },
    properties: [...built.properties, property],
  };
}

/** Only a field with a default can be removed: the default goes back into the graph. */
export const canRemove = (property: Property): boolean =>
  !isFile(property) && property.default_value !== null && property.default_value !== undefined;

/** Writes the default back into the graph. */
export function removeProperty(built: FormDefinition, key: string): FormDefinition {
  const gone = built.properties.find((each) => each.key === key);
  if (!gone || !canRemove(gone)) return built;
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

export const changeProperty = (built: FormDefinition, key: string, part: Partial<Property>): FormDefinition => ({
  ...built,
  properties: built.properties.map((each) => {
    if (each.key === key) return { ...each, ...part };
    // only one primary input
    return part.is_primary_input ? { ...each, is_primary_input: false } : each;
  }),
});

/** Drops the settings that the new type does not support. */
export function changeType(property: Property, type: PropertyType): Partial<Property> {
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

/** Moves within visible or hidden fields. */
export function moveProperty(properties: readonly Property[], key: string, by: 1 | -1): Property[] {
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

/** `cfg_scale` -> `Cfg scale` */
export function humanize(key: string): string {
  const words = key.replace(/[_.-]+/g, " ").trim();
  return words.charAt(0).toUpperCase() + words.slice(1);
}

export const isSame = (one: unknown, other: unknown): boolean => stringify(one) === stringify(other);
