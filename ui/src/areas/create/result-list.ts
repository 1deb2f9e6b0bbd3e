// The results of a workflow, newest first. Pure functions.

import type { AboutJob, Job } from "@/api/types";
import type { Item } from "@/areas/gallery/item";

export const MAX_RESULTS = 50;

export type Result = { kind: "output"; item: Item } | { kind: "failed"; job: Job };

const endTime = (result: Result): number =>
  Date.parse(result.kind === "output" ? result.item.created_at : (result.job.completed_at ?? result.job.created_at));

/** Outputs and failed jobs, newest first. A failure that was retried is not shown. */
export function mergeResults(items: readonly Item[], failed: readonly Job[]): Result[] {
  const results: Result[] = [
    ...items.map((item): Result => ({ kind: "output", item })),
    ...failed
      .filter((job) => job.status === "failed" && !job.retried_as)
      .map((job): Result => ({ kind: "failed", job })),
  ];
  // the sort is stable: outputs of one job keep their order
  return results.sort((one, other) => endTime(other) - endTime(one)).slice(0, MAX_RESULTS);
}

export type Direction = "left" | "right" | "up" | "down";

/** The index that an arrow key moves to in a grid that is filled row by row. */
export function neighborAt(index: number, direction: Direction, columns: number, total: number): number {
  const next = index + { left: -1, right: 1, up: -columns, down: columns }[direction];
  if (next >= 0 && next < total) return next;
  // the last row may be shorter
  const hasRowBelow = Math.floor(index / columns) < Math.floor((total - 1) / columns);
  return direction === "down" && hasRowBelow ? total - 1 : index;
}

const SHOWN_ELSEWHERE: readonly (string | null | undefined)[] = ["prompt", "seed"];

/** The values that differ from the workflow's defaults, except prompt and seed, which are shown elsewhere. */
export const changedValues = (inputs: AboutJob["inputs"]): [name: string, value: string][] =>
  inputs
    .filter((each) => !each.is_default && !SHOWN_ELSEWHERE.includes(each.role) && each.value !== null)
    .map((each) => [each.label, String(each.value)]);
