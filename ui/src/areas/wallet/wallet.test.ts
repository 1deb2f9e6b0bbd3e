import { expect, it } from "vitest";
import { wallet as texts } from "@/texts/wallet";
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
    made(7, "JOB_CONSUME", 124, "c"),
    made(6, "JOB_RESERVE", -150, "c"),
    made(5, "JOB_REFUND", 7, "b"),
    made(4, "JOB_RESERVE", -7, "b"),
    made(3, "JOB_CONSUME", 0, "a"),
    made(2, "JOB_RESERVE", -7, "a"),
    made(1, "PAYMENT_CREDIT", 20, null),
  ];
  expect(ledgerLines(found).map(({ type, transaction }) => [type, transaction.amount])).toEqual([
    ["JOB_CONSUME", -26],
    ["JOB_REFUND", 7],
    ["JOB_RESERVE", -7],
    ["JOB_CONSUME", -7],
    ["PAYMENT_CREDIT", 20],
  ]);
});

it("shows the size of stored uploads with its limits", () => {
  const stored = { files: 1200, bytes: 1_500_000_000 };
  expect(texts.uploads.stored({ ...stored, max_files: 10_000, max_bytes: 20_000_000_000 })).toBe(
    "1.5 GB of 20.0 GB in 1,200 of 10,000 files",
  );
  expect(texts.uploads.stored({ ...stored, files: 1, max_files: null, max_bytes: null })).toBe("1.5 GB in 1 file");
});
