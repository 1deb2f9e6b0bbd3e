// Model files of a form: folders, recently used ones, and trigger words. Pure functions, and the values that the browser stores.

import { queryOptions } from "@tanstack/react-query";
import { get } from "@/api/client";
import { readLocal, writeLocal } from "@/lib/local-storage";
import type { Choice, Input } from "./inputs";
import { targetOf } from "./submission";

const MODEL_FILE = /\.(safetensors|sft|ckpt|pt2?|pth|bin|gguf|ggml|onnx|engine|trt)$/i;
const MAX_RECENT = 8;
const SEPARATOR = /[\\/]/;

/** Whether a field names a model: by its role, or by the files among its choices. */
export const isModel = (input: Input): boolean =>
  (input.role === "model" && (input.type === "choice" || input.type === "text")) ||
  (input.type === "choice" && input.choices.some((each) => typeof each === "string" && MODEL_FILE.test(each)));

export interface ModelGroup {
  /** Empty for files in no folder. */
  folder: string;
  names: string[];
}

/** Groups names by folder, in the order of the folders' names. Files in no folder come first. */
export function groupByFolder(names: readonly string[]): ModelGroup[] {
  const groups = new Map<string, string[]>();
  for (const name of names) {
    const folder = name.split(SEPARATOR).slice(0, -1).join("/");
    groups.set(folder, [...(groups.get(folder) ?? []), name]);
  }
  return [...groups]
    .map(([folder, found]) => ({ folder, names: found }))
    .sort((a, b) => a.folder.localeCompare(b.folder, undefined, { numeric: true }));
}

export const baseName = (name: string): string => name.split(SEPARATOR).pop() ?? name;

const recentKey = (slug: string, field: string): string => `create.models.${slug}.${field}`;

function stored(slug: string, field: string): string[] {
  try {
    const found: unknown = JSON.parse(readLocal(recentKey(slug, field)) ?? "[]");
    return Array.isArray(found) ? found : [];
  } catch {
    return [];
  }
}

/** The last models of a field, newest first. Models that no longer exist are left out. */
export const recentModels = (slug: string, field: string, names: readonly string[]): string[] =>
  stored(slug, field).filter((each) => names.includes(each));

export function rememberModel(slug: string, field: string, name: string): void {
  const others = stored(slug, field).filter((each) => each !== name);
  writeLocal(recentKey(slug, field), JSON.stringify([name, ...others].slice(0, MAX_RECENT)));
}

/** Whether a prompt contains a trigger word that is not part of a longer word. */
export function hasWord(prompt: string, word: string): boolean {
  const escaped = word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  return new RegExp(`(?<![\\p{L}\\p{N}])${escaped}(?![\\p{L}\\p{N}])`, "iu").test(prompt);
}

const appendTo = (line: string, word: string): string => {
  const kept = line.trimEnd().replace(/,$/, "");
  return kept ? `${kept}, ${word}` : word;
};

/** Adds a trigger word to a prompt, or to each prompt if there is one per line. */
export function addWord(prompt: string, word: string, isByLine: boolean): string {
  if (!isByLine) return hasWord(prompt, word) ? prompt : appendTo(prompt, word);
  return prompt
    .split("\n")
    .map((line) => (line.trim() && !hasWord(line, word) ? appendTo(line, word) : line))
    .join("\n");
}

const queryOf = (choice: Choice, field: string) => ({ ...targetOf(choice), field });

export const models = (choice: Choice, field: string) =>
  queryOptions({
    queryKey: ["models", choice.slug, field] as const,
    queryFn: ({ signal }) => get("/api/desk/models", { query: queryOf(choice, field), signal }),
    // files are added while the page is open
    staleTime: 30_000,
    retry: false,
  });

export const modelMetadata = (choice: Choice, field: string, name: string) =>
  queryOptions({
    queryKey: ["models", choice.slug, field, name] as const,
    queryFn: ({ signal }) => get("/api/desk/models/metadata", { query: { ...queryOf(choice, field), name }, signal }),
    enabled: /\.(safetensors|sft)$/i.test(name),
    staleTime: 300_000,
    retry: false,
  });

export const pictureUrl = (choice: Choice, field: string, name: string): string =>
  `/api/desk/models/picture?${new URLSearchParams({ ...queryOf(choice, field), name })}`;
