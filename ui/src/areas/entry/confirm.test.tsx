import { fireEvent, render, screen } from "@testing-library/react";
import type { ReactNode } from "react";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { post } from "@/api/client";
import { Problem } from "@/api/problem";
import { TooltipProvider } from "@/kit/Tooltip";
import { entry } from "@/texts/entry";
import Confirm from "./confirm";

vi.mock("@/api/client", () => ({ post: vi.fn() }));
vi.mock("@tanstack/react-router", () => ({ Link: ({ children }: { children: ReactNode }) => children }));
vi.mock("./Frame", () => ({
  Frame: ({ title, children }: { title: string; children: ReactNode }) => (
    <div>
      <h1>{title}</h1>
      {children}
    </div>
  ),
}));

beforeEach(() => {
  location.hash = "#secret";
});
afterEach(() => {
  location.hash = "";
});

it("does not announce a new address for a link that ended", async () => {
  const detail = "This link was already used.";
  vi.mocked(post).mockRejectedValueOnce(new Problem(detail, 404));
  render(
    <TooltipProvider>
      <Confirm />
    </TooltipProvider>,
  );
  expect(screen.getByText(entry.confirm.about).textContent).toContain("After you confirm");
  fireEvent.click(screen.getByRole("button"));
  await screen.findByText(detail);
  expect(screen.getByRole("heading").textContent).toBe(entry.reset.gone);
  expect(screen.queryByText(entry.confirm.about)).toBeNull();
});
