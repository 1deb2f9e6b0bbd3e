import { describe, expect, it } from "vitest";
import type { Fleet, Scaling } from "../queries/fleets";
import {
  errorRates,
  highest,
  isolatedPoints,
  last,
  noticesOf,
  type OverviewFacts,
  rangeOf,
  rates,
  thinned,
} from "./rules";

const named = (worker_id: string) => ({ worker_id, display_name: null });
const none = { counts: {} };
const now = (more: object = {}) =>
  ({ waiting: 0, waiting_offline: 0, unrunnable: 0, done_hour: 0, failed_hour: 0, ...more }) as unknown as NonNullable<
    OverviewFacts["now"]
  >;
const fleet = { slug: "video", stage: "production", name: "video", autoscaling: { failed_boots: 3 } } as Fleet;
const noticeKeys = (seen: Partial<OverviewFacts>) =>
  noticesOf({ now: now(), workers: none, fleets: [], dead: 0, ...seen }).map((each) => each.key.split(" ")[0]);

describe("noticesOf", () => {
  it("returns nothing while all is well", () => {
    expect(noticeKeys({ workers: { counts: { busy: 1, idle: 1 } }, now: now({ waiting: 9, done_hour: 50 }) })).toEqual(
      [],
    );
  });

  it("puts waiting jobs without workers first", () => {
    const workers = { counts: { offline: 1, revoked: 1 }, offline: named("a"), shut: named("b") };
    expect(noticeKeys({ workers, now: now({ waiting: 1 }) })).toEqual(["nobody", "pending", "offline"]);
  });

  it("puts outages first, with their meaning and advice", () => {
    const outage = {
      kind: "central",
      name: "central",
      detail: "It refused.",
      means: "Customers cannot sign in.",
      advice: "Start it.",
      is_severe: true,
      since: "",
    };
    const [first] = noticesOf({ now: undefined, workers: none, fleets: [], dead: 3, outages: [outage] });
    expect(first?.text).toBe("The central database is down");
    expect(first?.aside).toBe("It refused. Customers cannot sign in. Start it.");
  });

  it("reports jobs that no worker can run, and workers without ComfyUI", () => {
    const workers = { counts: { idle: 1, no_comfyui: 1 }, broken: named("a") };
    expect(noticeKeys({ workers, now: now({ unrunnable: 2 }) })).toEqual(["unrunnable", "no_comfyui"]);
    expect(noticeKeys({ workers: none, now: now({ unrunnable: 2 }) })).toEqual(["nobody"]);
  });

  it("reports jobs that wait for offline workers while other workers are online", () => {
    const workers = { counts: { idle: 1, offline: 1 }, offline: named("a") };
    const waiting = now({ waiting: 2, waiting_offline: 2 });
    expect(noticeKeys({ workers, now: waiting })).toEqual(["waiting_offline", "offline"]);
    expect(noticeKeys({ workers: none, now: waiting })).toEqual(["nobody"]);
  });

  it("reports a fleet that reached its limit of failed launches", () => {
    const scaling = (failed_boots: number) => ({ failed_boots, is_paused: false, leader: "a" }) as Scaling;
    expect(noticeKeys({ fleets: [{ fleet, scaling: scaling(2) }] })).toEqual([]);
    expect(noticeKeys({ fleets: [{ fleet, scaling: scaling(3) }] })).toEqual(["breaker"]);
    expect(noticeKeys({ fleets: [{ fleet: { ...fleet, autoscaling: null }, scaling: scaling(3) }] })).toEqual([]);
  });

  it("reports a fleet without autoscaler unless it is paused", () => {
    const scaling = (leader: string | null, is_paused = false) => ({ failed_boots: 0, is_paused, leader }) as Scaling;
    expect(noticeKeys({ fleets: [{ fleet, scaling: scaling("a") }] })).toEqual([]);
    expect(noticeKeys({ fleets: [{ fleet, scaling: scaling(null) }] })).toEqual(["leader"]);
    expect(noticeKeys({ fleets: [{ fleet, scaling: scaling(null, true) }] })).toEqual(["paused"]);
  });

  it("marks a count that reached its limit", () => {
    expect(noticesOf({ now: now(), workers: none, fleets: [], dead: 3 })[0]?.text).toBe(
      "3 webhook deliveries abandoned",
    );
    const many = noticesOf({ now: now(), workers: none, fleets: [], dead: 3, isMoreDead: true });
    expect(many[0]?.text).toBe("3 or more webhook deliveries abandoned");
  });

  it("reports an error rate of 10 % only for enough jobs", () => {
    expect(noticeKeys({ now: now({ done_hour: 9, failed_hour: 1 }) })).toEqual(["failing"]);
    expect(noticeKeys({ now: now({ done_hour: 1, failed_hour: 1 }) })).toEqual([]);
  });

  it("offers to approve a single revoked worker", () => {
    const approve = (revoked: number) =>
      noticesOf({ now: now(), workers: { counts: { revoked }, shut: named("a") }, fleets: [], dead: 0 })[0]?.approve;
    expect(approve(1)).toBe("a");
    expect(approve(2)).toBeUndefined();
  });
});

it("computes error rates of finished jobs", () => {
  expect(errorRates([3, 0, null], [1, 0, null])).toEqual([0.25, null, null]);
});

it("converts counts to rates and drops the incomplete bucket", () => {
  expect(rates([6, null, 1], "hour", 60)).toEqual([6, null, null]);
  expect(rates([6, 1], "day", 600)).toEqual([36, null]);
  expect(rates([6, 1], "week", 3600)).toEqual([6, null]);
});

it("ignores missing values when it finds the last and the highest value", () => {
  expect(last([1, 4, null])).toBe(4);
  expect(highest([null, 4, 2])).toBe(4);
  expect(highest([null])).toBeNull();
});

it("finds values without a neighbor", () => {
  expect(isolatedPoints([1, null, 2, 3, null, 4])).toEqual([0, 5]);
  expect(isolatedPoints([null, 0, null])).toEqual([1]);
  expect(isolatedPoints([])).toEqual([]);
});

it("keeps the last value when thinning", () => {
  const values = Array.from({ length: 180 }, (_, index) => index);
  expect(thinned(values)).toHaveLength(60);
  expect(thinned(values).at(-1)).toBe(179);
});

it("falls back to the hour for an unknown range", () => {
  expect(rangeOf("year")).toBe("hour");
  expect(rangeOf("week")).toBe("week");
});
