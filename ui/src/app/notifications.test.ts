import { describe, expect, it } from "vitest";
import type { Batch, Job } from "@/api/types";
import { FinishedWork } from "./notifications";

const START = Date.parse("2026-03-05T10:00:00Z");
const batch = (id: string, done: number) => ({ id, done, total: 2, counts: { completed: done } }) as unknown as Batch;
const job = (id: string, status: string, more: object = {}) =>
  ({ id, status, batch_id: null, completed_at: "2026-03-05T11:00:00Z", ...more }) as unknown as Job;
const finishedIn = (work: FinishedWork, changed: Parameters<FinishedWork["finishedIn"]>[0]) =>
  work.finishedIn(changed).map((each) => each.id);

describe("finished work", () => {
  it("includes a batch once, and again after a retry", () => {
    const work = new FinishedWork(START);
    const item = job("i", "completed", { batch_id: "a" });
    expect(finishedIn(work, { jobs: [item], batches: [batch("a", 1)] })).toEqual([]);
    expect(finishedIn(work, { jobs: [item], batches: [batch("a", 2)] })).toEqual(["a"]);
    expect(finishedIn(work, { jobs: [item], batches: [batch("a", 2)] })).toEqual([]);
    expect(finishedIn(work, { batches: [batch("a", 1)] })).toEqual([]);
    expect(finishedIn(work, { jobs: [item], batches: [batch("a", 2)] })).toEqual(["a"]);
  });

  it("includes single jobs, but no canceled jobs and none that ended before the page opened", () => {
    const work = new FinishedWork(START);
    const before = { completed_at: "2026-03-05T09:00:00Z" };
    const jobs = [job("a", "completed"), job("b", "failed"), job("c", "canceled"), job("d", "completed", before)];
    expect(finishedIn(work, { jobs })).toEqual(["a", "b"]);
    expect(finishedIn(work, { jobs: [job("e", "processing", { completed_at: null })] })).toEqual([]);
  });
});
