import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { fireEvent, render, screen, waitFor } from "@testing-library/react";
import { afterEach, expect, it, vi } from "vitest";
import { call } from "@/api/client";
import { Problem } from "@/api/problem";
import { counts, keys } from "@/api/queries";
import { create as texts } from "@/texts/create";
import { changeDraft, EMPTY } from "./drafts";
import { useForm } from "./form";
import { PlanPanel } from "./PlanPanel";
import { missing } from "./queries";
import { choice, draft, file } from "./test-fixtures";
import { useSubmit } from "./use-submit";

vi.mock("@tanstack/react-router", () => ({ useNavigate: () => vi.fn() }));
vi.mock("@/api/client", async (original) => ({ ...(await original<object>()), call: vi.fn() }));
vi.mock("./BatchOptions", () => ({ BatchOptions: () => null }));
vi.mock("./JobPreview", () => ({ JobPreview: () => null }));

const effect = { ...choice, kind: "effect" as const, effectId: 1, tokens: 4, hasFixedPrice: false };
const COMMAND = { argv: null, isShown: false, problem: null, errors: {} };

afterEach(() => changeDraft(effect.slug, () => EMPTY));

function Harness() {
  const form = useForm(effect);
  const submission = useSubmit(form, { isDesk: false });
  return <PlanPanel {...{ form, submission }} found={null} isFresh folderProblem={null} command={COMMAND} />;
}

function mount(): void {
  const client = new QueryClient({ defaultOptions: { queries: { staleTime: Number.POSITIVE_INFINITY } } });
  client.setQueryData(keys.me, { id: "1", email: "eve@example.org", is_admin: false });
  client.setQueryData(keys.desk, null as never);
  client.setQueryData(counts.queryKey, { counts: {}, waiting: 0, pausedAt: null } as never);
  client.setQueryData(missing(effect).queryKey, null as never);
  render(
    <QueryClientProvider client={client}>
      <Harness />
    </QueryClientProvider>,
  );
}

it.each([
  ["/api/ai-jobs", ["a.png"], 4],
  ["/api/batches", ["a.png", "b.png"], 8],
])("asks for confirmation of a price that depends on the inputs: %s", async (path, names, lowest) => {
  changeDraft(effect.slug, () => draft({ files: { image: names.map(file) } }));
  const sent: unknown[] = [];
  vi.mocked(call).mockImplementation(async (_method, to, body) => {
    if (to !== path) return { data: null } as never;
    const expected = (body as { expected_tokens: number }).expected_tokens;
    sent.push(expected);
    if (expected !== 40) throw new Problem("It changed.", 409, {}, "price_changed", [], "", 40);
    return { data: { id: "1", total: names.length } } as never;
  });
  mount();
  expect(screen.getByText(new RegExp(texts.plan.tokensFrom(lowest)))).toBeTruthy();
  fireEvent.click(screen.getByRole("button"));
  await screen.findByText(texts.plan.confirmPrice(names.length, 40));
  expect(screen.getByText(new RegExp(`· ${texts.plan.tokens(40)}`))).toBeTruthy();
  fireEvent.click(screen.getByRole("button"));
  await waitFor(() => expect(sent).toEqual([lowest, 40]));
});
