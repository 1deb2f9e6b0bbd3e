// Metrics and notices of the overview.

import { type LinkProps, linkOptions } from "@tanstack/react-router";
import { overview as texts } from "@/texts/console-overview";
import type { Fleet, Scaling } from "../queries/fleets";
import type { Outage, Overview } from "../queries/overview";
import type { Worker } from "../queries/workers";
import type { Tone } from "../shared/panels";
import { workerName } from "../workers/rules";

export const RANGES = ["hour", "day", "week"] as const;
export type Range = (typeof RANGES)[number];
export const rangeOf = (text: string | undefined): Range => RANGES.find((each) => each === text) ?? "hour";

export type Values = readonly (number | null)[];

/** Null if no job finished. */
export const errorRate = (done: number, failed: number): number | null =>
  done + failed > 0 ? failed / (done + failed) : null;

export const errorRates = (done: Values, failed: Values): (number | null)[] =>
  done.map((each, index) => errorRate(each ?? 0, failed[index] ?? 0));

export const last = (values: Values): number | null => values.findLast((each) => each !== null) ?? null;
export const highest = (values: Values): number | null =>
  values.reduce<number | null>((top, each) => (each === null ? top : Math.max(top ?? each, each)), null);

/** Indices of values without a neighbor, which no line connects. */
export const isolatedPoints = (values: Values): number[] =>
  values.flatMap((each, index) => {
    const hasNeighbor = (values[index - 1] ?? null) !== null || (values[index + 1] ?? null) !== null;
    return each === null || hasNeighbor ? [] : [index];
  });

/** Rates are per minute for an hour and per hour otherwise, as in `texts.per`. */
const UNIT_SECONDS: Readonly<Record<Range, number>> = { hour: 60, day: 3600, week: 3600 };

/** Counts per bucket as rates. The last bucket is incomplete and would look like a drop. */
export const rates = (sums: Values, range: Range, bucketSeconds: number): (number | null)[] =>
  sums.map((each, index) =>
    each === null || index === sums.length - 1 ? null : (each * UNIT_SECONDS[range]) / bucketSeconds,
  );

/** Enough for a sparkline. */
const MAX_POINTS = 60;

export function thinned(values: Values): number[] {
  const step = Math.max(1, Math.ceil(values.length / MAX_POINTS));
  return values.filter((_, index) => (values.length - 1 - index) % step === 0).map((each) => each ?? 0);
}

export interface Notice {
  key: string;
  tone: Tone;
  text: string;
  aside: string;
  link: LinkProps;
  /** Id of the worker to approve from the notice. */
  approve?: string;
}

type Named = Pick<Worker, "worker_id" | "display_name">;

export interface OverviewFacts {
  now: Overview["now"] | undefined;
  /** Counts by state, and the first revoked, offline and broken worker. */
  workers: {
    counts: Readonly<Record<string, number>>;
    shut?: Named | undefined;
    offline?: Named | undefined;
    broken?: Named | undefined;
  };
  /** Most urgent first. */
  outages?: readonly Outage[];
  fleets: readonly { fleet: Fleet; scaling: Scaling | undefined }[];
  dead: number;
  /** The count reached its limit; there may be more. */
  isMoreDead?: boolean;
}

/** With fewer finished jobs, the error rate means little. */
const MIN_FINISHED = 5;
const HIGH_ERROR_RATE = 0.1;

export const isBroken = (fleet: Fleet, scaling: Scaling | undefined): boolean =>
  scaling !== undefined &&
  scaling.failed_boots > 0 &&
  scaling.failed_boots >= (fleet.autoscaling?.failed_boots ?? Number.POSITIVE_INFINITY);

/** Most urgent first. */
export function noticesOf({ now, workers, fleets, dead, isMoreDead = false, outages = [] }: OverviewFacts): Notice[] {
  const words = texts.attention;
  const found: Notice[] = [];
  const { counts, shut, offline, broken } = workers;
  const of = (...states: string[]) => states.reduce((sum, each) => sum + (counts[each] ?? 0), 0);
  for (const each of outages) {
    found.push({
      key: `outage ${each.kind} ${each.name}`,
      tone: each.is_severe ? "bad" : "warn",
      text: words.outage(each.kind, each.name),
      aside: [each.detail, each.means, each.advice].join(" "),
      link: linkOptions({ to: "/console/settings" }),
    });
  }
  const queued = now ? now.waiting + now.unrunnable : 0;
  if (queued > 0 && of("busy", "idle", "draining") === 0) {
    found.push({
      key: "nobody",
      tone: "bad",
      text: words.nobody(queued),
      aside: words.nobodyAside,
      link: linkOptions({ to: "/console/workers", search: { open: "add" } }),
    });
  } else if (now) {
    const link = linkOptions({ to: "/console/dispatches", search: { status: "queued" } });
    if (now.unrunnable > 0) {
      const text = words.unrunnable(now.unrunnable);
      found.push({ key: "unrunnable", tone: "bad", text, aside: words.unrunnableAside, link });
    }
    if (now.waiting_offline > 0) {
      const text = words.waitingOffline(now.waiting_offline);
      found.push({ key: "waiting_offline", tone: "bad", text, aside: words.waitingOfflineAside, link });
    }
  }
  if (broken && of("no_comfyui") > 0) {
    const text = words.broken(of("no_comfyui"), workerName(broken));
    const link = linkOptions({ to: "/console/workers", search: { status: "no_comfyui" } });
    found.push({ key: "no_comfyui", tone: "bad", text, aside: words.brokenAside, link });
  }
  if (shut && of("revoked") > 0) {
    found.push({
      key: "pending",
      tone: "warn",
      text: words.pending(of("revoked"), workerName(shut)),
      aside: words.pendingAside,
      link: linkOptions({ to: "/console/workers", search: { status: "revoked" } }),
      ...(of("revoked") === 1 && { approve: shut.worker_id }),
    });
  }
  for (const { fleet, scaling } of fleets) {
    const to = "/console/fleets/$stage/$slug" as const;
    const params = { stage: fleet.stage, slug: fleet.slug };
    const id = `${fleet.stage}/${fleet.slug}`;
    const link = linkOptions({ to, params });
    const name = fleet.name || fleet.slug;
    if (scaling && isBroken(fleet, scaling)) {
      const decisions = linkOptions({ to, params, search: { tab: "decisions" } });
      const aside = words.breakerAside(scaling.failed_boots);
      found.push({ key: `breaker ${id}`, tone: "bad", text: words.breaker(name), aside, link: decisions });
    }
    if (scaling && scaling.leader === null && !scaling.is_paused) {
      found.push({ key: `leader ${id}`, tone: "warn", text: words.noLeader(name), aside: words.noLeaderAside, link });
    }
    if (scaling?.is_paused) {
      found.push({ key: `paused ${id}`, tone: "info", text: words.paused(name), aside: words.pausedAside, link });
    }
  }
  if (dead > 0) {
    found.push({
      key: "dead",
      tone: "warn",
      text: words.dead(dead, isMoreDead),
      aside: words.deadAside,
      link: linkOptions({ to: "/console/webhooks", search: { status: "dead" } }),
    });
  }
  const rate = now ? errorRate(now.done_hour, now.failed_hour) : null;
  if (now && rate !== null && rate >= HIGH_ERROR_RATE && now.done_hour + now.failed_hour >= MIN_FINISHED) {
    found.push({
      key: "failing",
      tone: "bad",
      text: words.failing(rate),
      aside: words.failingAside,
      link: linkOptions({ to: "/console/dispatches", search: { status: "failed" } }),
    });
  }
  if (offline && of("offline") > 0) {
    const text = words.offline(of("offline"), workerName(offline));
    const link = linkOptions({ to: "/console/workers", search: { status: "offline" } });
    found.push({ key: "offline", tone: "warn", text, aside: words.offlineAside, link });
  }
  return found;
}
