import { render, screen } from "@testing-library/react";
import { expect, it, vi } from "vitest";
import { payments } from "@/texts/console-payments";
import { NoPayments, PaymentTable } from ".";

vi.mock("@tanstack/react-router", () => ({ Link: "a", useNavigate: vi.fn(), useSearch: vi.fn() }));

it.each([
  [true, 0, true],
  [true, 100, false],
  [false, 0, false],
])("marks a payment whose money must be returned: refused %s, %s refunded", (is_refused, refunded, isMarked) => {
  const payment = {
    event_id: "evt",
    tenant_id: "1",
    email: null,
    amount: 100,
    currency: "EUR",
    created_at: "2026-01-01",
  };
  render(<PaymentTable rows={[{ ...payment, is_refused, refunded }]} />);
  expect(screen.queryAllByText(payments.notCredited)).toHaveLength(isMarked ? 1 : 0);
});

it.each([
  [false, payments.empty],
  [true, payments.noneInPeriod],
])("says whether the list is filtered: %s", (isFiltered, title) => {
  render(<NoPayments isFiltered={isFiltered} />);
  expect(screen.getByText(title)).toBeTruthy();
});
