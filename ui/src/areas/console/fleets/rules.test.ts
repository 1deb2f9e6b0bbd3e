import { describe, expect, it } from "vitest";
import type { Fleet, Scaling, Usage } from "../queries/fleets";
import { lastDays, matchesFilter, runCost, stateOf, totalCost } from "./rules";

const fleet = {
  slug: "video",
  name: "Video",
  stage: "production",
  workflow_slugs: ["wan22-i2v"],
  machines: { provider: "aws" },
  autoscaling: { failed_boots: 3 },
} as Fleet;
const scaling = (more: Partial<Scaling> = {}) =>
  ({
    failed_boots: 0,
    is_paused: false,
    is_dry_run: false,
    leader: "a",
    machines: [],
    max_machines: 2,
    queued_jobs: 0,
    ...more,
  }) as Scaling;

describe("stateOf", () => {
  it("is static without a machine provider", () => {
    expect(stateOf({ ...fleet, machines: null }, undefined)).toBe("static");
    expect(stateOf({ ...fleet, machines: { ...fleet.machines, provider: "static" } } as Fleet, scaling())).toBe(
      "static",
    );
  });

  it("returns the most severe state", () => {
    expect(stateOf(fleet, scaling())).toBe("scaled");
    expect(stateOf(fleet, scaling({ is_dry_run: true }))).toBe("dry");
    expect(stateOf(fleet, scaling({ is_dry_run: true, leader: null }))).toBe("nobody");
    expect(stateOf(fleet, scaling({ is_paused: true, leader: null }))).toBe("paused");
    expect(stateOf(fleet, scaling({ is_paused: true, failed_boots: 3 }))).toBe("broken");
  });

  it("is limited only while jobs are queued", () => {
    const machines = [{}, {}] as Scaling["machines"];
    expect(stateOf(fleet, scaling({ machines }))).toBe("scaled");
    expect(stateOf(fleet, scaling({ machines, queued_jobs: 3 }))).toBe("limited");
  });
});

it("searches fleets by name and workflow", () => {
  expect(matchesFilter(fleet, { q: "WAN22" })).toBe(true);
  expect(matchesFilter(fleet, { q: "flux" })).toBe(false);
  expect(matchesFilter(fleet, { stage: "staging" })).toBe(false);
});

it("includes today in the last days", () => {
  expect(lastDays(30, new Date("2026-03-01T23:00:00Z"))).toEqual({ from: "2026-01-31", to: "2026-03-01" });
  expect(lastDays(1, new Date("2026-03-01T00:00:00Z"))).toEqual({ from: "2026-03-01", to: "2026-03-01" });
});

describe("totalCost", () => {
  const usage = (more: Partial<Usage>) =>
    ({
      busy_seconds: 0,
      lost_seconds: 0,
      idle_seconds: null,
      boot_seconds: null,
      cost: 0,
      machine_cost: null,
      ...more,
    }) as Usage;

  it("is unknown for machines without a price", () => {
    expect(totalCost(usage({ idle_seconds: 60, machine_cost: 0 }))).toBe("unknown");
    expect(totalCost(usage({ busy_seconds: 60 }), 3)).toBe("unknown");
    expect(runCost(usage({ busy_seconds: 60 }))).toBe("unknown");
  });

  it("is the cost of the machines, otherwise of the jobs", () => {
    expect(totalCost(usage({ busy_seconds: 60, cost: 1, machine_cost: 3 }))).toBe("3.00");
    expect(totalCost(usage({ busy_seconds: 60, cost: 1 }), 2)).toBe("0.50");
    expect(totalCost(usage({ machine_cost: 0 }))).toBe("0.00");
  });

  it("has four decimals below 1", () => {
    const shown = [0.0033, 0.00001, 0.99999, 0.526].map((cost) => runCost(usage({ busy_seconds: 60, cost })));
    expect(shown).toEqual(["0.0033", "<0.0001", "1.00", "0.526"]);
  });
});
