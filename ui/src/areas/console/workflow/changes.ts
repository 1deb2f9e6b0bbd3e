import { isSame } from "../catalogue/builder";
import type { Workflow } from "../catalogue/queries";

const CHANGEABLE = [
  ...(["name", "graph", "properties", "output_node_id", "output_extension", "output_mime_type"] as const),
  ...(["provider", "self_hosted_micros_per_second", "cloud_micros_per_second", "burst_micros_per_hour"] as const),
  "is_active" as const,
];

/** Only the changed fields. */
export const changesOf = (before: Workflow, edited: Partial<Workflow>): Partial<Workflow> =>
  Object.fromEntries(
    CHANGEABLE.filter((each) => each in edited && !isSame(edited[each] ?? null, before[each] ?? null)).map((each) => [
      each,
      edited[each] ?? null,
    ]),
  );

/** `properties.3.maximum` refers to the fourth property, `properties.steps` to the key. */
export function errorsByProperty(workflow: Workflow, errors: Readonly<Record<string, string>>): Record<string, string> {
  const found: Record<string, string> = {};
  for (const [name, why] of Object.entries(errors)) {
    const [, place = ""] = name.split(".");
    if (!name.startsWith("properties.")) continue;
    const property = /^\d+$/.test(place)
      ? workflow.properties[Number(place)]
      : workflow.properties.find((each) => each.key === place);
    if (property) found[property.key] = why;
  }
  return found;
}
