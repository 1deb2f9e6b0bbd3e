import { describe, expect, it } from "vitest";
import { changesOf, type Details, draftOf, newSchedule, validateDraft, withDay } from "./scaling-draft";

const details = {
  policy: "fast",
  min_machines: 1,
  max_machines: 5,
  launches_per_minute: 10,
  cost_per_hour: 6,
  failed_boots: 3,
  last_idle_seconds: 900,
  is_dry_run: false,
  is_paused: true,
  schedules: [],
} as Details;

it("sends only changed fields, without the paused flag", () => {
  const before = draftOf(details);
  expect(changesOf(before, before)).toBeNull();
  expect(changesOf(before, { ...before, max_machines: 8, cost_per_hour: null })).toEqual({
    max_machines: 8,
    cost_per_hour: null,
  });
});

it("starts with defaults for a fleet without settings", () => {
  expect(draftOf(null)).toMatchObject({ policy: "balanced", min_machines: 0, max_machines: 10 });
});

describe("validation", () => {
  const draft = draftOf(details);

  it("reports missing and contradictory numbers", () => {
    expect(validateDraft(draft)).toEqual({});
    expect(validateDraft({ ...draft, cost_per_hour: null })).toEqual({});
    expect(Object.keys(validateDraft({ ...draft, max_machines: null }))).toEqual(["max_machines"]);
    expect(Object.keys(validateDraft({ ...draft, min_machines: 6 }))).toEqual(["min_machines"]);
  });

  it("reports invalid times and schedules without days", () => {
    const schedule = { ...newSchedule(), ends: "24:00" };
    expect(validateDraft({ ...draft, schedules: [schedule] })).toEqual({});
    const wrong = { ...schedule, begins: "25:00", ends: "8", days: [] };
    expect(Object.keys(validateDraft({ ...draft, schedules: [schedule, wrong] }))).toEqual([
      "schedules.1.begins",
      "schedules.1.ends",
      "schedules.1.days",
    ]);
  });
});

it("keeps days sorted", () => {
  const schedule = { ...newSchedule(), days: [0, 4] };
  expect(withDay(schedule, 2, true).days).toEqual([0, 2, 4]);
  expect(withDay(schedule, 4, false).days).toEqual([0]);
});
