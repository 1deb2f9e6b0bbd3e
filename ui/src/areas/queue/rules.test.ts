import { describe, expect, it } from "vitest";
import type { QueueEntry } from "@/api/types";
import { actionsFor, canPrioritize } from "@/jobs/actions";
import {
  bulkSelections,
  canMove,
  checkboxState,
  countSelected,
  doneOf,
  isSameView,
  linesOf,
  moveEntry,
  progressParts,
  summaryOf,
  targetOfEntry,
  tilesThatFit,
} from "./rules";

const entry = (id: string, more: Partial<QueueEntry> = {}): QueueEntry => ({
  id,
  is_batch: false,
  label: id,
  first_label: null,
  workflow_slug: null,
  workflow_name: null,
  kind: "image",
  status: "waiting",
  total: 1,
  matched: 1,
  counts: { queued: 1 } as QueueEntry["counts"],
  fetched: 0,
  held: null,
  expected_seconds: null,
  starts_in_seconds: null,
  waiting_text: null,
  waiting_reason: null,
  priority: 0,
  created_at: "2026-03-05T10:00:00Z",
  ended_at: null,
  error: null,
  retried_as: null,
  items: [],
  next_cursor: null,
  ...more,
});
const counts = (given: Record<string, number>) => given as QueueEntry["counts"];

describe("a batch", () => {
  const mixed = entry("a", {
    is_batch: true,
    status: "failed",
    total: 12,
    counts: counts({ completed: 11, failed: 1 }),
  });

  it("with one failed item shows a warning", () => {
    expect(summaryOf(mixed)).toEqual({ main: "1 failed", sub: "11 of 12 done", tone: "warn" });
    expect(summaryOf({ ...mixed, error: "Not enough memory." }).sub).toBe("11 of 12 done · Not enough memory.");
    expect(progressParts(mixed.counts, 12).map((each) => each.status)).toEqual(["completed", "failed"]);
  });

  it("with only failed items shows the error", () => {
    const all = entry("a", { ...mixed, counts: counts({ failed: 12 }), error: "Not enough memory." });
    expect(summaryOf(all)).toEqual({ main: "Failed", sub: "Not enough memory.", tone: "bad" });
  });

  it("offers to retry failed items, and no canceled ones while others are active", () => {
    expect(actionsFor(targetOfEntry(mixed))).toEqual(["retry", "again", "delete"]);
    const going = entry("a", { is_batch: true, counts: counts({ processing: 1, canceled: 2 }) });
    expect(actionsFor(targetOfEntry(going))).toEqual(["pause", "pauseNow", "cancel"]);
  });

  it("fills its bar with finished items only, without canceled ones", () => {
    expect(progressParts({ processing: 1, canceled: 1, queued: 2 }, 4)).toEqual([]);
    expect(doneOf({ completed: 1, failed: 1, canceled: 1 })).toBe(2);
  });
});

describe("a job", () => {
  it("that was retried can be run again, but not retried", () => {
    const failed = { status: "failed", counts: counts({ failed: 1 }) } as const;
    expect(actionsFor(targetOfEntry(entry("a", failed)))).toEqual(["retry", "delete"]);
    expect(actionsFor(targetOfEntry(entry("a", { ...failed, retried_as: "b" })))).toEqual(["again", "delete"]);
  });

  it("that a worker has fetched cannot be moved, nor a batch without other waiting jobs", () => {
    const more: Partial<QueueEntry>[] = [
      { fetched: 1 },
      { fetched: 1, is_batch: true, status: "running", counts: counts({ processing: 1, queued: 1 }) },
    ];
    for (const each of more) {
      expect(canMove(entry("a", each))).toBe(false);
      expect(actionsFor(targetOfEntry(entry("a", each)))).not.toContain("next");
    }
  });

  it("that waits can change its priority, and so can a batch with waiting jobs", () => {
    const can = (more: Partial<QueueEntry>) => canPrioritize(targetOfEntry(entry("a", more)));
    expect(can({ status: "waiting" })).toBe(true);
    expect(can({ status: "running", counts: counts({ processing: 1 }) })).toBe(false);
    expect(can({ is_batch: true, status: "running", counts: counts({ processing: 1, queued: 2 }) })).toBe(true);
    expect(can({ is_batch: true, status: "completed", counts: counts({ completed: 2 }) })).toBe(false);
  });
});

describe("the list", () => {
  const today = new Date(2026, 2, 6, 12);
  const ended = (id: string, at: Date) =>
    entry(id, { status: "completed", counts: counts({ completed: 1 }), ended_at: at.toISOString() });

  it("shows the next entries first, then finished ones by day", () => {
    const lines = linesOf(
      [
        entry("a"),
        ended("b", new Date(2026, 2, 6, 9)),
        ended("c", new Date(2026, 2, 5, 23)),
        ended("d", new Date(2026, 2, 1)),
      ],
      undefined,
      { today },
    );
    expect(lines.map((each) => (each.kind === "heading" ? each.text : each.key))).toEqual([
      "Next",
      "a",
      "Earlier today",
      "b",
      "Yesterday",
      "c",
      "Sunday, March 1",
      "d",
    ]);
  });

  it("shows running entries under Now, without a second heading below the slots", () => {
    const entries = [entry("a", { status: "running" }), entry("b")];
    const keys = (above?: string) =>
      linesOf(entries, undefined, above ? { above } : {}).map((line) =>
        line.kind === "heading" ? line.text : line.key,
      );
    expect(keys()).toEqual(["Now", "a", "Next", "b"]);
    expect(keys("Now")).toEqual(["a", "Next", "b"]);
  });

  it("shows how long finished entries took", () => {
    expect(summaryOf(entry("a", { status: "completed", took_seconds: 95 })).sub).toBe("took 2 min");
    expect(summaryOf(entry("a", { status: "completed", took_seconds: null })).sub).toBe("");
  });

  it("is reordered by moving an entry before or after another", () => {
    const all = [entry("a"), entry("b"), entry("c"), ended("d", today)];
    expect(moveEntry(all, "c", { other: "a", isAfter: false }).map((each) => each.id)).toEqual(["c", "a", "b", "d"]);
    expect(moveEntry(all, "a", { other: "b", isAfter: true }).map((each) => each.id)).toEqual(["b", "a", "c", "d"]);
    expect(canMove(ended("d", today))).toBe(false);
  });

  it("can be reordered only in queue order", () => {
    expect(["queue", undefined, "newest", "oldest"].map((sort) => canMove(entry("a"), sort))).toEqual([
      true,
      true,
      false,
      false,
    ]);
  });
});

describe("a selection", () => {
  it("takes one call for jobs, one per batch, or one for all matches", () => {
    expect(bulkSelections(["1", "b-2", "3"], {})).toEqual([
      { ids: ["1", "3"] },
      { filter: { in_queue: true, batch_id: "2" } },
    ]);
    expect(bulkSelections(["all"], { status: "waiting", q: "cat", sort: "newest" })).toEqual([
      { filter: { in_queue: true, status: "waiting", q: "cat" } },
    ]);
  });

  it("of a batch under a filter includes only matching jobs", () => {
    expect(bulkSelections(["b-2"], { status: "failed", q: "cat" })).toEqual([
      { filter: { in_queue: true, status: "failed", q: "cat", batch_id: "2" } },
    ]);
    expect(checkboxState({ matched: 1, total: 8 }, true)).toBe("some");
    expect(checkboxState({ matched: 8, total: 8 }, true)).toBe(true);
    expect(checkboxState({ matched: 1, total: 8 }, false)).toBe(false);
  });
});

it("a view is active if all its filters are equal", () => {
  const view = { search: { q: "cat", sort: "newest" } };
  expect(isSameView(view, { q: "cat", sort: "newest", status: "", workflow: "" })).toBe(true);
  expect(isSameView(view, { q: "cat" })).toBe(false);
});

it("an entry that a paused queue holds shows that the queue is paused", () => {
  const held = entry("a", { waiting_reason: "queue_paused", starts_in_seconds: null });
  expect(summaryOf(held)).toMatchObject({ main: "Queue paused", tone: "warn" });
});

it("an entry that no worker can run is blocked and shows the reason", () => {
  const missing = entry("a", { waiting_reason: "missing", waiting_text: "No worker has flux.safetensors." });
  expect(summaryOf(missing)).toEqual({ main: "Blocked", sub: "No worker has flux.safetensors.", tone: "warn" });
  expect(summaryOf(entry("a", { waiting_reason: "busy", waiting_text: "Position 2." })).tone).toBe("quiet");
});

it("the row of a waiting job shows its start time once", () => {
  const inLine = { waiting_reason: "busy", waiting_text: "Position 2. The worker is busy. Expected to start in 9 s." };
  const known = summaryOf(entry("a", { ...inLine, starts_in_seconds: 9 }));
  expect([known.main, known.sub]).toEqual(["starts in 9 s", ""]);
  const delayed = { waiting_reason: "not_before", waiting_text: "Starts at 10:00:00 UTC at the earliest, in 9 s." };
  expect(summaryOf(entry("a", { ...delayed, starts_in_seconds: 9 })).sub).toBe(delayed.waiting_text);
});

it("paused entries can be moved", () => {
  const paused = entry("a", { status: "paused", counts: counts({ paused: 1 }) });
  expect(canMove(paused)).toBe(true);
  expect(actionsFor(targetOfEntry(paused))).toEqual(["resume", "next", "up", "down", "cancel"]);
  expect(actionsFor(targetOfEntry(entry("b", { is_batch: true, counts: counts({ paused: 2 }) })))).toContain("next");
});

it("a batch shows as many tiles as fit", () => {
  expect(tilesThatFit(36, 1000, 26, 2)).toBe(36);
  expect(tilesThatFit(36, 320, 26, 2)).toBe(20);
  expect(tilesThatFit(6, 160, 50, 1)).toBe(1);
});

it("selected jobs and batches are counted if all are loaded", () => {
  const all = [
    entry("a", { is_batch: true, matched: 3, total: 6 }),
    entry("b", { is_batch: true, matched: 7 }),
    entry("c"),
  ];
  const entries = all.map((each) => ({ ...each, matched: each.matched ?? 1 }));
  expect(countSelected(entries, ["all"], false)).toEqual({ jobs: 11, batches: 2 });
  expect(countSelected(entries, ["b-a", "c"], true)).toEqual({ jobs: 4, batches: 1 });
  expect(countSelected(entries, ["all"], true)).toBeNull();
  expect(countSelected(entries, ["b-gone"], true)).toBeNull();
});
