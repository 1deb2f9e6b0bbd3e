// Sorts dropped or chosen files into workflows, media and unsupported files.

import { parse } from "@/api/json";
import { typeOf } from "@/api/uploads";

export interface ClassifiedFiles {
  graphs: { name: string; graph: unknown }[];
  media: File[];
  /** Names of `.json` files that are not JSON; only if a single file was given. */
  invalidJson: string[];
  /** Names of JSON files without a workflow; only if a single file was given. */
  notWorkflows: string[];
  unsupported: string[];
}

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** Editor format or API format; sidecar files of cameras and tools are neither. */
export const isGraph = (value: unknown): boolean =>
  isObject(value) &&
  (Array.isArray(value.nodes) || Object.values(value).some((each) => isObject(each) && "class_type" in each));

export async function classifyFiles(files: readonly File[]): Promise<ClassifiedFiles> {
  const found: ClassifiedFiles = { graphs: [], media: [], invalidJson: [], notWorkflows: [], unsupported: [] };
  // a single file is meant to be a workflow: say why it is not one
  const isSingle = files.length === 1;
  for (const file of files) {
    if (/^(image|video|audio)\//.test(typeOf(file))) {
      found.media.push(file);
      continue;
    }
    if (!file.name.toLowerCase().endsWith(".json")) {
      found.unsupported.push(file.name);
      continue;
    }
    try {
      // keeps 64-bit seeds exact
      const graph = parse(await file.text());
      // an API request contains its graph
      const isWorkflow = isGraph(graph) || (isSingle && isObject(graph) && Object.values(graph).some(isGraph));
      if (isWorkflow) found.graphs.push({ name: file.name, graph });
      else (isSingle ? found.notWorkflows : found.unsupported).push(file.name);
    } catch {
      (isSingle ? found.invalidJson : found.unsupported).push(file.name);
    }
  }
  return found;
}
