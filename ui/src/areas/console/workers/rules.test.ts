import { describe, expect, it } from "vitest";
import type { Gpu, Worker, WorkerDetails, WorkerJob } from "../queries/workers";
import {
  describeProgress,
  listNames,
  parseWorkersQuery,
  percentOf,
  progressPart,
  runningFirst,
  workerBlocks,
  workerNote,
} from "./rules";

const worker = (worker_id: string, more: Partial<Worker> = {}): Worker =>
  ({
    worker_id,
    display_name: null,
    fleet_slug: "home",
    stage: "production",
    state: "idle",
    version: "1.2.0",
    last_seen_at: "2026-01-01T00:00:00Z",
    leases: 0,
    is_approved: true,
    is_draining: false,
    instance_type: null,
    gpus: [],
    jobs: [],
    blocked: 0,
    ...more,
  }) as Worker;
const gpu = (name: string, more: Partial<Gpu> = {}) => ({ name, unavailable_reason: null, ...more }) as Gpu;

describe("parseWorkersQuery", () => {
  it("maps search parameters to the request", () => {
    expect(parseWorkersQuery({ status: "busy", fleet: "video", q: " l40s ", sort: "-seen" })).toEqual({
      state: "busy",
      fleet: "video",
      search: "l40s",
      sort: "-seen",
    });
    expect(parseWorkersQuery({ fleet: "staging/home" })).toEqual({ fleet: "home", stage: "staging" });
  });

  it("drops invalid parameters", () => {
    expect(parseWorkersQuery({ status: "asleep", sort: "luck", fleet: "", q: "" })).toEqual({});
  });
});

describe("workerBlocks", () => {
  const now = Date.parse("2026-01-01T00:05:00Z");
  const details = (more: Partial<WorkerDetails>) =>
    ({ ...worker("gpu-1"), workflow_slugs: ["flux"], blocks: [], missing_requirements: [], ...more }) as WorkerDetails;
  const textsOf = (more: Partial<WorkerDetails>) => workerBlocks(details(more), now).map((each) => each.text);

  it("returns nothing for a healthy worker", () => {
    expect(textsOf({})).toEqual([]);
  });

  it("includes silent time and running jobs", () => {
    expect(textsOf({ state: "offline" })[0]).toContain("5 min");
    expect(textsOf({ is_draining: true, leases: 2 })[0]).toContain("2 jobs");
    expect(textsOf({ is_draining: true })[0]).toContain("You can stop the worker");
  });

  it("names workflows that are still blocked", () => {
    const block = { workflow_hash: "0123456789ab", workflow_slug: "wan22", failure_count: 3 };
    expect(textsOf({ blocks: [{ ...block, blocked_until: "2026-01-01T00:06:00Z" }] })[0]).toContain("wan22");
    expect(textsOf({ blocks: [{ ...block, blocked_until: "2026-01-01T00:04:00Z" }] })).toEqual([]);
  });

  it("gives the reason of a block", () => {
    const block = { workflow_hash: "0123", workflow_slug: "wan22", failure_count: 1, is_out_of_memory: true };
    const reason = "ran out of memory on a GPU of 24 GiB";
    const [text] = textsOf({ blocks: [{ ...block, reason, blocked_until: "2026-01-01T00:06:00Z" }] });
    expect(text).toContain("ran out of memory on a GPU of 24 GiB. The block ends earlier when ComfyUI restarts.");
  });

  it("merges the same problem of several GPUs", () => {
    const gpus = [
      gpu("a", { unavailable_reason: "ComfyUI is unreachable." }),
      gpu("b", { unavailable_reason: "ComfyUI is unreachable." }),
    ];
    expect(textsOf({ gpus })).toEqual(["ComfyUI is unreachable."]);
  });

  it("names missing requirements by workflow", () => {
    const unmet = {
      workflow_hash: "0123456789ab",
      workflow_slug: null,
      node_types: ["VHS_Combine"],
      models: ["a", "b", "c"],
    };
    expect(textsOf({ missing_requirements: [unmet] })).toEqual(["01234567 is missing VHS_Combine, a, b +1."]);
  });

  it("shortens to the most severe problem in the list", () => {
    expect(workerNote(worker("a", { state: "offline", blocked: 2 }), now).tone).toBe("bad");
    expect(workerNote(worker("a", { blocked: 2 }), now)).toEqual({ text: "blocked for 2 workflows", tone: "warn" });
    expect(workerNote(worker("a"), now).text).toBe("");
  });
});

it("lists a few names and counts the rest", () => {
  expect(listNames(["a", "b", "c", "d", "e"])).toBe("a, b, c +2");
  expect(listNames(["a"])).toBe("a");
});

describe("job progress", () => {
  const job = (progress: unknown, is_prefetch = false) => ({ progress, is_prefetch }) as WorkerJob;

  it("clamps progress to 0..1", () => {
    expect(progressPart(job({ value: 0.4 }))).toBe(0.4);
    expect(progressPart(job({ value: 7 }))).toBe(1);
    expect(progressPart(job("nonsense"))).toBeNull();
  });

  it("marks estimated progress", () => {
    const estimated = job({ value: 0.45, is_estimated: true });
    expect([percentOf(estimated), describeProgress(estimated)]).toEqual(["about 45 %", "estimated"]);
    expect(percentOf(job({ value: 0.45 }))).toBe("45 %");
    expect(percentOf(job(null))).toBeNull();
  });

  it("sorts running jobs before prefetched ones", () => {
    const [fetched, running] = [job(null, true), job({ value: 0.2, node_title: "KSampler", step: 3, steps: 20 })];
    expect(runningFirst([fetched, running])).toEqual([running, fetched]);
    expect(describeProgress(running)).toBe("KSampler · step 3 of 20");
    expect(describeProgress(fetched)).toBe("prefetched, starts next");
  });
});
