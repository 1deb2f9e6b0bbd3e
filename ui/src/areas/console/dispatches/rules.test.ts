import { describe, expect, it } from "vitest";
import type { Dispatch } from "../queries/dispatches";
import { allowedActions, dispatchTime, parseDispatchesQuery, refundableTokens, resultOf, runCost } from "./rules";

const dispatch = (status: string, more: Partial<Dispatch> = {}) =>
  ({
    status,
    cancel_requested_at: null,
    created_at: "2026-01-01T00:00:00Z",
    leased_at: "2026-01-01T00:01:00Z",
    duration_seconds: null,
    ...more,
  }) as Dispatch;

describe("allowedActions", () => {
  it("allows one cancel of an unfinished dispatch", () => {
    expect(allowedActions(dispatch("queued"))).toEqual({ cancel: true, retry: false, priority: true });
    expect(allowedActions(dispatch("leased", { cancel_requested_at: "2026-01-01T00:02:00Z" })).cancel).toBe(false);
    expect(allowedActions(dispatch("completed"))).toEqual({ cancel: false, retry: false, priority: false });
  });

  it("allows a retry after failure or cancel", () => {
    expect(allowedActions(dispatch("failed")).retry).toBe(true);
    expect(allowedActions(dispatch("canceled")).retry).toBe(true);
  });
});

it("does not show an unknown cost as zero", () => {
  expect(runCost(0, "completed")).toBe("unknown");
  expect(runCost(0.0035, "completed")).toBe("0.0035");
  expect(runCost(0, "canceled")).toBe("0.00");
});

it("names the jobs that a bulk action refused", () => {
  const refused = ["1", "2", "3", "4"].map((id) => ({ id, detail: "It did not cost anything." }));
  expect(resultOf({ changed: 2, matched: 3, refused: refused.slice(0, 1) })).toBe(
    "Changed 2 of 3 jobs. Job 1: It did not cost anything.",
  );
  const text = resultOf({ changed: 0, matched: 4, refused });
  expect(text).toContain("Job 3: ");
  expect(text).toContain("1 more job was refused.");
});

it("shows waiting time, running time or duration", () => {
  const now = Date.parse("2026-01-01T00:01:30Z");
  expect(dispatchTime(dispatch("queued"), now)).toBe("waiting 2 min");
  expect(dispatchTime(dispatch("leased"), now)).toBe("running 30 s");
  expect(dispatchTime(dispatch("completed", { duration_seconds: 12 }), now)).toBe("12 s");
  expect(dispatchTime(dispatch("canceled"), now)).toBe("");
});

it("offers a refund of a job that was paid and not refunded", () => {
  const job = { charged_tokens: 7, refunded_tokens: 0 } as const;
  expect(refundableTokens(job)).toBe(7);
  expect(refundableTokens({ ...job, refunded_tokens: 7 })).toBe(0);
  expect(refundableTokens({ ...job, charged_tokens: 0 })).toBe(0);
  expect(refundableTokens({ ...job, charged_tokens: null })).toBe(0);
});

it("filters by user, effect and day, and drops nonexistent days", () => {
  expect(
    parseDispatchesQuery({ user: "ada@example.com", effect: "clip", from: "2026-02-30", to: "2026-03-01" }),
  ).toEqual({
    user: "ada@example.com",
    effect: "clip",
    to: "2026-03-01",
  });
});

it("maps search parameters to the request and drops empty ones", () => {
  expect(parseDispatchesQuery({ q: " gpu-1 ", status: "failed", stage: "" })).toEqual({
    search: "gpu-1",
    status: "failed",
  });
});
