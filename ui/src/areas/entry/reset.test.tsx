import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { fireEvent, render, screen } from "@testing-library/react";
import type { ReactNode } from "react";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { post } from "@/api/client";
import { problemOf } from "@/api/problem";
import { TooltipProvider } from "@/kit/Tooltip";
import { entry } from "@/texts/entry";
import Reset from "./reset";

vi.mock("@/api/client", () => ({ post: vi.fn() }));
vi.mock("@tanstack/react-router", () => ({ Link: () => null, useSearch: () => ({}) }));
vi.mock("./Frame", () => ({ Frame: ({ children }: { children: ReactNode }) => <div>{children}</div> }));

beforeEach(() => {
  location.hash = "#secret";
});

afterEach(() => {
  location.hash = "";
});

async function open(hasWebhook: boolean) {
  vi.mocked(post).mockResolvedValueOnce({ data: { email: "ada@example.com", has_webhook: hasWebhook } } as never);
  render(
    <QueryClientProvider client={new QueryClient()}>
      <TooltipProvider>
        <Reset />
      </TooltipProvider>
    </QueryClientProvider>,
  );
  await screen.findByDisplayValue("ada@example.com");
}

it("mentions a webhook only if there is one", async () => {
  await open(false);
  expect(screen.getByText(entry.reset.about)).toBeTruthy();
});

it("warns that a webhook stays active", async () => {
  await open(true);
  expect(screen.getByText(`${entry.reset.about} ${entry.reset.webhook}`)).toBeTruthy();
});

it("shows only the reason for a refused password", async () => {
  await open(false);
  const why = "This is one of the most common passwords. Choose another one.";
  vi.mocked(post).mockRejectedValueOnce(problemOf({ detail: "The input is invalid.", errors: { password: why } }, 422));
  fireEvent.change(screen.getByLabelText(entry.newPassword), { target: { value: "password1" } });
  fireEvent.click(screen.getByRole("button", { name: entry.reset.action }));
  expect(await screen.findByText(why)).toBeTruthy();
  expect(screen.queryByText(/The input is invalid/)).toBeNull();
});
