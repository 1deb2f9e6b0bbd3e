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

it("only what was changed is sent, and pausing is none of the form's", () => {
  const before = draftOf(details);
  expect(changesOf(before, before)).toBeNull();
  expect(changesOf(before, { ...before, max_machines: 8, cost_per_hour: null })).toEqual({
    max_machines: 8,
    cost_per_hour: null,
  });
});

it("a fleet of which nobody has said anything begins with what counts by default", () => {
  expect(draftOf(null)).toMatchObject({ policy: "balanced", min_machines: 0, max_machines: 10 });
});

describe("what is wrong is told by its field", () => {
  const draft = draftOf(details);

  it("as numbers that are missing or contradict each other", () => {
    expect(validateDraft(draft)).toEqual({});
    expect(validateDraft({ ...draft, cost_per_hour: null })).toEqual({});
    expect(Object.keys(validateDraft({ ...draft, max_machines: null }))).toEqual(["max_machines"]);
    expect(Object.keys(validateDraft({ ...draft, min_machines: 6 }))).toEqual(["min_machines"]);
  });

  it("as times that are none, and schedules without a day", () => {
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

it("days stay in their order", () => {
  const schedule = { ...newSchedule(), days: [0, 4] };
  expect(withDay(schedule, 2, true).days).toEqual([0, 2, 4]);
  expect(withDay(schedule, 4, false).days).toEqual([0]);
});
