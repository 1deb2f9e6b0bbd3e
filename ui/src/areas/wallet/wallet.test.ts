import { expect, it } from "vitest";
import { ledgerLines, type Transaction } from "./queries";

const made = (id: number, type: string, amount: number, job: string | null): Transaction => ({
  id,
  type,
  amount,
  job_id: job,
  job_label: null,
  description: null,
  created_at: "2026-01-01T12:00:00Z",
});

it("merges a reservation and its use into one line, but not a refund", () => {
  const found = [
    made(5, "JOB_REFUND", 7, "b"),
    made(4, "JOB_RESERVE", -7, "b"),
    made(3, "JOB_CONSUME", 0, "a"),
    made(2, "JOB_RESERVE", -7, "a"),
    made(1, "PAYMENT_CREDIT", 20, null),
  ];
  expect(ledgerLines(found).map(({ type, transaction }) => [type, transaction.amount])).toEqual([
    ["JOB_REFUND", 7],
    ["JOB_RESERVE", -7],
    ["JOB_CONSUME", -7],
    ["PAYMENT_CREDIT", 20],
  ]);
});
