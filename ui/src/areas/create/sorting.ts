// What was dropped or chosen together: workflows, media, and what is neither.

import { parse } from "@/api/json";
import { typeOf } from "@/api/uploads";

export interface Sorted {
  graphs: { name: string; graph: unknown }[];
  media: File[];
  /** Names of those that end in `.json` and are none, where nothing else was given. */
  broken: string[];
  /** Names of those that are JSON and no workflow, where nothing else was given. */
  strange: string[];
  /** Names of all that is of no use here. */
  left: string[];
}

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** As the editor saves it, or in the format of the API; a sidecar of a camera or a tool is neither. */
export const isGraph = (value: unknown): boolean =>
  isObject(value) &&
  (Array.isArray(value.nodes) || Object.values(value).some((each) => isObject(each) && "class_type" in each));

export async function sortedOut(files: readonly File[]): Promise<Sorted> {
  const found: Sorted = { graphs: [], media: [], broken: [], strange: [], left: [] };
  // one alone is meant to be a workflow: why it is none is said in full
  const isAlone = files.length === 1;
  for (const file of files) {
    if (/^(image|video|audio)\//.test(typeOf(file))) {
      found.media.push(file);
      continue;
    }
    if (!file.name.toLowerCase().endsWith(".json")) {
      found.left.push(file.name);
      continue;
    }
    try {
      // seeds in it may have 64 bits
      const graph = parse(await file.text());
      // an API call has its graph inside
      const isMeant = isGraph(graph) || (isAlone && isObject(graph) && Object.values(graph).some(isGraph));
      if (isMeant) found.graphs.push({ name: file.name, graph });
      else (isAlone ? found.strange : found.left).push(file.name);
    } catch {
      (isAlone ? found.broken : found.left).push(file.name);
    }
  }
  return found;
}
