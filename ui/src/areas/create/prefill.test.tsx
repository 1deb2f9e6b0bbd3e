import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { renderHook, waitFor } from "@testing-library/react";
import { beforeEach, expect, it, vi } from "vitest";
import { get } from "@/api/client";
import { keys } from "@/api/queries";
import { toast } from "@/kit";
import { create as texts } from "@/texts/create";
import { changeDraft, draftOf, EMPTY } from "./drafts";
import type { Form } from "./form";
import { useUrlPrefill } from "./prefill";
import { sweepOf } from "./sweep";
import { choice } from "./test-fixtures";

const navigate = vi.fn();
vi.mock("@tanstack/react-router", () => ({ useNavigate: () => navigate, useSearch: () => ({ from: "j1" }) }));
vi.mock("@/api/client", async (original) => ({ ...(await original<object>()), get: vi.fn() }));
vi.mock("@/kit", async (original) => ({ ...(await original<object>()), toast: vi.fn() }));

beforeEach(() => {
  vi.clearAllMocks();
  changeDraft("painter", () => EMPTY);
  answerWithPrompt("a fox");
});

function answerWithPrompt(value: string): void {
  vi.mocked(get).mockImplementation((async (path: string) => {
    if (path === "/api/ai-jobs/{job_id}") return { id: "j1", effect_id: null, workflow_slug: "painter", label: "fox" };
    if (path.startsWith("/api/desk/jobs")) return { inputs: [{ key: "prompt", value }] };
    return { items: [] };
  }) as unknown as typeof get);
}

function renderFrom(desk: { is_guest: boolean } | null): void {
  const client = new QueryClient({ defaultOptions: { queries: { staleTime: Number.POSITIVE_INFINITY } } });
  client.setQueryData(keys.me, { id: "1", email: "ada@example.com", is_admin: false });
  client.setQueryData(keys.desk, desk);
  renderHook(() => useUrlPrefill(choice, [choice], {} as Form), {
    wrapper: ({ children }) => <QueryClientProvider client={client}>{children}</QueryClientProvider>,
  });
}

it("loads the values of a job on a desk", async () => {
  renderFrom({ is_guest: false });
  await waitFor(() => expect(navigate).toHaveBeenCalled());
  expect(draftOf("painter").texts.prompt).toBe("a fox");
});

it.each([
  ["a fox", "a fox\na hen", 2],
  ["a fox\nin the rain", "a fox\nin the snow", 0],
])("takes further lines as prompts only if the prompt of the job had one line: %j", async (prompt, typed, count) => {
  answerWithPrompt(prompt);
  renderFrom({ is_guest: false });
  await waitFor(() => expect(navigate).toHaveBeenCalled());
  const draft = draftOf("painter");
  expect(sweepOf(choice, { ...draft, texts: { ...draft.texts, prompt: typed } }).prompts).toHaveLength(count);
});

it("opens the workflow of the job on a server, which does not return values", async () => {
  renderFrom(null);
  await waitFor(() => expect(navigate).toHaveBeenCalledWith({ search: { workflow: "painter" }, replace: true }));
  expect(vi.mocked(toast).mock.calls).toEqual([[{ text: texts.from.onServer("Painter") }]]);
  expect(vi.mocked(get).mock.calls.map(([path]) => path)).not.toContain("/api/desk/jobs/{job_id}");
});
