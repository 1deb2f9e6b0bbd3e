import { render, screen } from "@testing-library/react";
import { expect, it } from "vitest";
import { payments } from "@/texts/console-payments";
import { NoPayments } from ".";

it.each([
  [false, payments.empty],
  [true, payments.noneInPeriod],
])("says whether the list is filtered: %s", (isFiltered, title) => {
  render(<NoPayments isFiltered={isFiltered} />);
  expect(screen.getByText(title)).toBeTruthy();
});
