// Draft of the machines of a fleet: defaults, validation, changes.

import type { BodyOf } from "@/api/client";
import { fleet as words } from "@/texts/console-fleets";
import type { Fleet } from "../queries/fleets";

type Details = NonNullable<Fleet["machines"]>;
export type InstanceType = Details["instance_types"][number];
type Body = NonNullable<NonNullable<BodyOf<"/api/admin/fleets/{stage}/{slug}", "patch">>["machines"]>;

export const PROVIDERS = ["static", "local", "command", "aws", "kubernetes"] as const;

/** As typed: `options` is JSON, and the bundle has a name per line. */
export interface MachinesDraft {
  provider: string;
  image: string;
  slots: number | null;
  instance_types: InstanceType[];
  options: string;
  nodes: string;
  models: string;
}

export function machinesDraftOf(machines: Details | null | undefined): MachinesDraft {
  const { bundle } = machines ?? {};
  return {
    provider: machines?.provider ?? "static",
    image: machines?.image ?? "",
    slots: machines?.slots ?? 1,
    instance_types: machines?.instance_types ?? [],
    options: Object.keys(machines?.options ?? {}).length ? JSON.stringify(machines?.options, null, 2) : "",
    nodes: (bundle?.node_types ?? []).join("\n"),
    models: (bundle?.models ?? []).join("\n"),
  };
}

/** By field name, such as `instance_types.0.name`. */
export function validateMachines(draft: MachinesDraft): Readonly<Record<string, string>> {
  const { wrong } = words.machines;
  const found: Record<string, string> = {};
  if (draft.slots === null) found.slots = words.scaling.wrong.needed;
  if (optionsOf(draft.options) === null) found.options = wrong.options;
  const names = draft.instance_types.map(({ name }) => name.trim());
  names.forEach((name, index) => {
    if (!name) found[`instance_types.${index}.name`] = wrong.name;
    else if (names.indexOf(name) !== index) found[`instance_types.${index}.name`] = wrong.repeated;
  });
  return found;
}

/** Only changed fields. Null if unchanged. */
export function machineChangesOf(before: MachinesDraft, draft: MachinesDraft): Body | null {
  const isChanged = (name: keyof MachinesDraft) => JSON.stringify(before[name]) !== JSON.stringify(draft[name]);
  const changes: Body = {
    ...(isChanged("provider") && { provider: draft.provider }),
    ...(isChanged("image") && { image: draft.image.trim() || null }),
    ...(isChanged("slots") && { slots: draft.slots }),
    ...(isChanged("instance_types") && { instance_types: draft.instance_types }),
    ...(isChanged("options") && { options: optionsOf(draft.options) }),
    ...((isChanged("nodes") || isChanged("models")) && { bundle: bundleOf(draft) }),
  };
  return Object.keys(changes).length ? changes : null;
}

function optionsOf(text: string): Record<string, unknown> | null {
  if (!text.trim()) return {};
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value)
      ? (value as Record<string, unknown>)
      : null;
  } catch {
    return null;
  }
}

const linesOf = (text: string) => [...new Set(text.split("\n").map((line) => line.trim()))].filter(Boolean);

function bundleOf({ nodes, models }: MachinesDraft): Body["bundle"] {
  const [node_types, found] = [linesOf(nodes), linesOf(models)];
  return node_types.length || found.length ? { node_types, models: found } : null;
}
