// State of a fleet.

import { console as shared } from "@/texts/console";
import { isBroken } from "../overview/rules";
import type { Fleet, Scaling, Usage } from "../queries/fleets";
import type { Tone } from "../shared/panels";

export type FleetState = "static" | "scaled" | "paused" | "dry" | "broken" | "limited" | "nobody";

export const isScaled = (fleet: Fleet): boolean => Boolean(fleet.machines) && fleet.machines?.provider !== "static";

/** The most severe state. */
export function stateOf(fleet: Fleet, scaling: Scaling | undefined): FleetState {
  if (!isScaled(fleet)) return "static";
  if (!scaling) return "scaled";
  if (isBroken(fleet, scaling)) return "broken";
  if (scaling.is_paused) return "paused";
  if (scaling.leader === null) return "nobody";
  if (scaling.is_dry_run) return "dry";
  const isFull = scaling.machines.length >= scaling.max_machines && scaling.queued_jobs > 0;
  return isFull ? "limited" : "scaled";
}

export const TONES: Readonly<Record<FleetState, Tone>> = {
  static: "muted",
  scaled: "good",
  paused: "info",
  dry: "info",
  broken: "bad",
  limited: "warn",
  nobody: "bad",
};

export interface FleetFilter {
  q?: string | undefined;
  stage?: string | undefined;
}

export function matchesFilter(fleet: Fleet, { q, stage }: FleetFilter): boolean {
  if (stage && fleet.stage !== stage) return false;
  const text = [fleet.slug, fleet.name, ...fleet.workflow_slugs].join("\n").toLowerCase();
  return (q ?? "")
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
}

const ranSeconds = (usage: Usage): number => usage.busy_seconds + usage.lost_seconds;

/** Cost of the time in which jobs ran. */
export const runCost = (usage: Usage): string => shared.cost(usage.cost, ranSeconds(usage), usage.unpriced_seconds);

/** Cost of the machines over their whole lifetime, or of the jobs if there are no machines; divided by `per`. */
export function totalCost(usage: Usage, per = 1): string {
  const seconds = ranSeconds(usage) + (usage.idle_seconds ?? 0) + (usage.boot_seconds ?? 0);
  return shared.cost((usage.machine_cost ?? usage.cost) / per, seconds);
}

/** First and last day in UTC, both included. */
export function lastDays(days: number, now = new Date()): { from: string; to: string } {
  const to = now.toISOString().slice(0, 10);
  const from = new Date(Date.parse(to) - (days - 1) * 86_400_000).toISOString().slice(0, 10);
  return { from, to };
}
