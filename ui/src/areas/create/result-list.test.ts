import { expect, it } from "vitest";
import type { AboutJob, Job } from "@/api/types";
import type { Item } from "@/areas/gallery/item";
import { changedValues, MAX_RESULTS, mergeResults, neighborAt } from "./result-list";

const at = (minute: number): string => new Date(Date.UTC(2026, 0, 1, 12, minute)).toISOString();
const output = (id: string, minute: number) => ({ id, created_at: at(minute) }) as Item;
const failure = (id: string, minute: number, more: Partial<Job> = {}) =>
  ({ id, status: "failed", created_at: at(0), completed_at: at(minute), retried_as: null, ...more }) as Job;
const idsOf = (results: ReturnType<typeof mergeResults>) =>
  results.map((each) => (each.kind === "output" ? each.item.id : each.job.id));

it("orders outputs and failures by the time they ended, newest first", () => {
  const results = mergeResults([output("c", 9), output("a", 3)], [failure("b", 5)]);
  expect(idsOf(results)).toEqual(["c", "b", "a"]);
});

it("keeps the order of the outputs of one job", () => {
  expect(idsOf(mergeResults([output("1", 3), output("2", 3)], []))).toEqual(["1", "2"]);
});

it("hides failures that were retried, or that are being retried in place", () => {
  const failed = [failure("a", 1, { retried_as: "b" }), failure("c", 2, { status: "processing" })];
  expect(mergeResults([], failed)).toEqual([]);
});

it("bounds the number of results", () => {
  const many = Array.from({ length: MAX_RESULTS + 9 }, (_each, minute) => output(String(minute), minute));
  const results = mergeResults(many, []);
  expect(results).toHaveLength(MAX_RESULTS);
  expect(idsOf(results)[0]).toBe(String(MAX_RESULTS + 8));
});

it.each([
  [0, "right", 1],
  [0, "left", 0],
  [1, "down", 4],
  [4, "up", 1],
  [2, "down", 4],
  [4, "down", 4],
  [4, "right", 4],
  [1, "up", 1],
] as const)("leads from %i %s to %i in rows of three", (place, direction, next) => {
  expect(neighborAt(place, direction, 3, 5)).toBe(next);
});

it("shows the values that differ, without prompt and seed", () => {
  const value = (label: string, given: unknown, more: object = {}) => ({
    ...{ key: label, label, type: "number", value: given, url: null, file_id: null, is_default: false, role: null },
    ...more,
  });
  const inputs = [
    value("Prompt", "a fox", { role: "prompt" }),
    value("Seed", 7, { role: "seed" }),
    value("Steps", 30, { role: "steps" }),
    value("Cfg", 7, { is_default: true }),
    value("Mask", null),
  ] as AboutJob["inputs"];
  expect(changedValues(inputs)).toEqual([["Steps", "30"]]);
});
