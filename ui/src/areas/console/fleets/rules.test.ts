import { describe, expect, it } from "vitest";
import type { Fleet, Scaling } from "../queries/fleets";
import { isWanted, lastDays, stateOf } from "./rules";

const fleet = {
  slug: "video",
  name: "Video",
  stage: "production",
  workflow_slugs: ["wan22-i2v"],
  machines: { provider: "aws" },
  scaling: { failed_boots: 3 },
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

describe("the state of a fleet", () => {
  it("is by hand where nobody launches its machines", () => {
    expect(stateOf({ ...fleet, machines: null }, undefined)).toBe("static");
    expect(stateOf({ ...fleet, machines: { ...fleet.machines, provider: "static" } } as Fleet, scaling())).toBe(
      "static",
    );
  });

  it("is the gravest of what holds", () => {
    expect(stateOf(fleet, scaling())).toBe("scaled");
    expect(stateOf(fleet, scaling({ is_dry_run: true }))).toBe("dry");
    expect(stateOf(fleet, scaling({ is_dry_run: true, leader: null }))).toBe("nobody");
    expect(stateOf(fleet, scaling({ is_paused: true, leader: null }))).toBe("paused");
    expect(stateOf(fleet, scaling({ is_paused: true, failed_boots: 3 }))).toBe("broken");
  });

  it("is at its limit only while jobs wait", () => {
    const machines = [{}, {}] as Scaling["machines"];
    expect(stateOf(fleet, scaling({ machines }))).toBe("scaled");
    expect(stateOf(fleet, scaling({ machines, queued_jobs: 3 }))).toBe("limited");
  });
});

it("a fleet is found by its name and by what it runs", () => {
  expect(isWanted(fleet, { q: "WAN22" })).toBe(true);
  expect(isWanted(fleet, { q: "flux" })).toBe(false);
  expect(isWanted(fleet, { stage: "staging" })).toBe(false);
});

it("today is one of the last days", () => {
  expect(lastDays(30, new Date("2026-03-01T23:00:00Z"))).toEqual({ from: "2026-01-31", to: "2026-03-01" });
  expect(lastDays(1, new Date("2026-03-01T00:00:00Z"))).toEqual({ from: "2026-03-01", to: "2026-03-01" });
});
