import { QueryClientProvider } from "@tanstack/react-query";
import { render, screen } from "@testing-library/react";
import { afterEach, expect, it, vi } from "vitest";
import { makeQueryClient } from "@/api/queries";
import { worker as texts } from "@/texts/console-workers";
import WorkerPage from ".";

vi.mock("@tanstack/react-router", () => ({ Link: () => null, useParams: () => ({ id: "gpu-9" }) }));

afterEach(() => vi.unstubAllGlobals());

it("shows the log of a worker that has left", async () => {
  const entry = { id: 1, event: "deregister", created_at: "2026-11-19T10:00:00Z", dispatch_id: null, data: null };
  vi.stubGlobal("fetch", async (path: string) =>
    path.includes("/audit-logs")
      ? new Response(JSON.stringify({ data: { items: [{ ...entry, worker_id: "gpu-9" }], next_cursor: null } }))
      : new Response(JSON.stringify({ status: 404, title: "Not found" }), { status: 404 }),
  );
  render(
    <QueryClientProvider client={makeQueryClient()}>
      <WorkerPage />
    </QueryClientProvider>,
  );
  expect(await screen.findByText(texts.gone)).toBeTruthy();
  expect(await screen.findByText(texts.audit.events.deregister ?? "")).toBeTruthy();
});
