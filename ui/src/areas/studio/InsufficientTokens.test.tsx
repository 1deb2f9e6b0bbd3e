import { render, screen } from "@testing-library/react";
import type { ReactNode } from "react";
import { expect, it, vi } from "vitest";
import { InsufficientTokens } from "./InsufficientTokens";

vi.mock("@tanstack/react-router", () => ({ Link: ({ children }: { children: ReactNode }) => children }));

it.each([
  [9, "You need 9 tokens and have 2", "This effect needs 7 more tokens."],
  [null, "You need at least 7 tokens and have 2", "This effect needs at least 5 more tokens."],
])("does not present the lowest price as the price: %s", (price, title, missing) => {
  render(<InsufficientTokens price={price} minimum={7} have={2} topUpUrl={null} />);
  expect(screen.getByText(title)).toBeTruthy();
  expect(screen.getByText(missing, { exact: false })).toBeTruthy();
});
