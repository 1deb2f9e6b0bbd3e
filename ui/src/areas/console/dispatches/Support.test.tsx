import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { fireEvent, render, screen, waitFor, within } from "@testing-library/react";
import { expect, it, vi } from "vitest";
import { post } from "@/api/client";
import { TooltipProvider } from "@/kit/Tooltip";
import { dispatches } from "@/texts/console-dispatches";
import { supportOf } from "../queries/dispatches";
import { Support } from "./Support";

vi.mock("@tanstack/react-router", () => ({ Link: () => null }));
vi.mock("@/api/client", async (original) => ({ ...(await original<object>()), post: vi.fn() }));
vi.mock("@/jobs/Viewer", () => ({ Viewer: () => null }));

it("asks before a job runs again for free", async () => {
  const client = new QueryClient({ defaultOptions: { queries: { staleTime: Number.POSITIVE_INFINITY } } });
  const job = { status: "completed", error: null, reserved_tokens: 1, charged_tokens: 0, refunded_tokens: 0 };
  client.setQueryData(supportOf("7").queryKey, { job, email: "ada@example.com", values: {}, events: [] } as never);
  vi.mocked(post).mockResolvedValue({ data: { job_id: "8" } } as never);
  render(
    <QueryClientProvider client={client}>
      <TooltipProvider>
        <Support dispatch={{ id: 7, status: "completed", tenant_id: "t" } as never} />
      </TooltipProvider>
    </QueryClientProvider>,
  );
  fireEvent.click(screen.getByRole("button", { name: dispatches.support.runFree }));
  expect(post).not.toHaveBeenCalled();
  const dialog = await screen.findByRole("dialog");
  fireEvent.click(within(dialog).getByRole("button", { name: dispatches.support.runFree }));
  await waitFor(() => expect(post).toHaveBeenCalledOnce());
});
