// Draft of the autoscaling settings: defaults, validation, changes.

import type { BodyOf } from "@/api/client";
import { fleet as words } from "@/texts/console-fleets";
import type { Fleet } from "../queries/fleets";

export type Details = NonNullable<Fleet["autoscaling"]>;
export type Schedule = Details["schedules"][number];
type Body = NonNullable<NonNullable<BodyOf<"/api/admin/fleets/{stage}/{slug}", "patch">>["autoscaling"]>;

/** As typed: numbers may be missing. */
export interface Draft {
  policy: string;
  min_machines: number | null;
  max_machines: number | null;
  launches_per_minute: number | null;
  cost_per_hour: number | null;
  failed_boots: number | null;
  last_idle_seconds: number | null;
  is_dry_run: boolean;
  schedules: Schedule[];
}

const DEFAULTS: Draft = {
  policy: "balanced",
  min_machines: 0,
  max_machines: 10,
  launches_per_minute: 10,
  cost_per_hour: null,
  failed_boots: 3,
  last_idle_seconds: null,
  is_dry_run: false,
  schedules: [],
};

export function draftOf(scaling: Details | null | undefined): Draft {
  if (!scaling) return DEFAULTS;
  const { is_paused: _, ...rest } = scaling;
  return rest;
}

const NUMBERS = ["min_machines", "max_machines", "launches_per_minute", "failed_boots"] as const;
const TIME = /^([01]\d|2[0-3]):[0-5]\d(:00)?$|^24:00(:00)?$/;

/** By field name, such as `schedules.0.begins`. */
export function validateDraft(draft: Draft): Readonly<Record<string, string>> {
  const { wrong } = words.scaling;
  const found: Record<string, string> = {};
  for (const each of NUMBERS) {
    if (draft[each] === null) found[each] = wrong.needed;
  }
  if (draft.min_machines !== null && draft.max_machines !== null && draft.min_machines > draft.max_machines) {
    found.min_machines = wrong.minOverMax;
  }
  draft.schedules.forEach((each, index) => {
    if (!TIME.test(each.begins)) found[`schedules.${index}.begins`] = wrong.time;
    if (!TIME.test(each.ends)) found[`schedules.${index}.ends`] = wrong.time;
    if (each.days.length === 0) found[`schedules.${index}.days`] = wrong.days;
  });
  return found;
}

const isSame = (one: unknown, other: unknown): boolean => JSON.stringify(one) === JSON.stringify(other);

/** Only changed fields, so that concurrent edits by others are kept. Null if unchanged. */
export function changesOf(before: Draft, draft: Draft): Body | null {
  const names = (Object.keys(draft) as (keyof Draft)[]).filter((each) => !isSame(before[each], draft[each]));
  return names.length ? (Object.fromEntries(names.map((each) => [each, draft[each]])) as Body) : null;
}

export const newSchedule = (): Schedule => ({
  days: [0, 1, 2, 3, 4],
  begins: "08:00",
  ends: "18:00",
  at_least: 1,
  timezone: Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC",
});

export const withDay = ({ days, ...rest }: Schedule, day: number, isOn: boolean): Schedule => ({
  ...rest,
  days: [...days.filter((each) => each !== day), ...(isOn ? [day] : [])].sort((one, other) => one - other),
});
