import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { fireEvent, render, screen, waitFor } from "@testing-library/react";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { call, post } from "@/api/client";
import { Problem } from "@/api/problem";
import { counts, keys } from "@/api/queries";
import { create as texts } from "@/texts/create";
import { changeDraft, EMPTY } from "./drafts";
import { useForm } from "./form";
import type { Choice } from "./inputs";
import { PlanPanel } from "./PlanPanel";
import { usePriceOfJobs } from "./price";
import { missing } from "./queries";
import { choice, draft, file } from "./test-fixtures";
import { useSubmit } from "./use-submit";

vi.mock("@tanstack/react-router", () => ({ useNavigate: () => vi.fn() }));
vi.mock("@/api/client", async (original) => ({ ...(await original<object>()), call: vi.fn(), post: vi.fn() }));
vi.mock("./BatchOptions", () => ({ BatchOptions: () => null }));
vi.mock("./JobPreview", () => ({ JobPreview: () => null }));

const effect = { ...choice, kind: "effect" as const, effectId: 1, tokens: 4, hasFixedPrice: false };
const COMMAND = { argv: null, isShown: false, problem: null, errors: {} };

/** The items of each price request. */
let priced: unknown[][] = [];

beforeEach(() => {
  priced = [];
  vi.mocked(post).mockImplementation((async (_path: string, { body }: { body: { items: PricedItem[] } }) => {
    priced.push(
      body.items.map(({ input_payload, input_file_id: file }) => ({ ...input_payload, ...(file && { file }) })),
    );
    return { data: { items: body.items.map((each) => (each.input_file_id === "id-b.png" ? 12 : 9)) } };
  }) as never);
});
afterEach(() => changeDraft(effect.slug, () => EMPTY));

interface PricedItem {
  input_payload: object;
  input_file_id?: string;
}

function Harness({ of, isPriced }: { of: Choice; isPriced: boolean }) {
  const form = useForm(of);
  const price = usePriceOfJobs(form, !isPriced);
  const submission = useSubmit(form, { isDesk: false, price });
  return <PlanPanel {...{ form, submission }} found={null} isFresh folderProblem={null} command={COMMAND} />;
}

function mount({ of = effect, isPriced = false }: { of?: Choice; isPriced?: boolean } = {}): void {
  const client = new QueryClient({ defaultOptions: { queries: { staleTime: Number.POSITIVE_INFINITY } } });
  client.setQueryData(keys.me, { id: "1", email: "eve@example.org", is_admin: false });
  client.setQueryData(keys.desk, null as never);
  client.setQueryData(counts.queryKey, { counts: {}, waiting: 0, pausedAt: null } as never);
  client.setQueryData(missing(effect).queryKey, null as never);
  render(
    <QueryClientProvider client={client}>
      <Harness of={of} isPriced={isPriced} />
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
  const message = await screen.findByText(texts.plan.confirmPrice(names.length, 40));
  const button = screen.getByRole("button", { name: texts.plan.confirm(40) });
  expect(button.parentElement?.contains(message)).toBe(true);
  expect(screen.getByText(new RegExp(`· ${texts.plan.tokens(40)}`))).toBeTruthy();
  fireEvent.click(screen.getByRole("button"));
  await waitFor(() => expect(sent).toEqual([lowest, 40]));
});

it.each([
  ["once for all files", false, 18, [{ steps: 30 }]],
  [
    "of each file",
    true,
    21,
    [
      { steps: 30, file: "id-a.png" },
      { steps: 30, file: "id-b.png" },
    ],
  ],
])("shows the price %s and submits it", async (_case, priceNeedsInput, tokens, asked) => {
  const of = { ...effect, priceNeedsInput };
  changeDraft(of.slug, () => draft({ texts: { steps: "30", seed: "5", prompt: "a cat" } }));
  mount({ of, isPriced: true });
  await screen.findByText(new RegExp(texts.plan.tokens(tokens)));
  expect(priced).toEqual([asked]);
  vi.mocked(call).mockResolvedValue({ data: { id: "1", total: 2 } } as never);
  fireEvent.click(screen.getByRole("button"));
  await waitFor(() => expect(vi.mocked(call).mock.lastCall?.[2]).toMatchObject({ expected_tokens: tokens }));
});

it("shows the exact price of many files, with one request", async () => {
  const names = Array.from({ length: 30 }, (_, number) => (number ? `${number}.png` : "b.png"));
  const of = { ...effect, priceNeedsInput: true };
  changeDraft(of.slug, () => draft({ files: { image: names.map(file) } }));
  mount({ of, isPriced: true });
  await screen.findByText(new RegExp(texts.plan.tokens(29 * 9 + 12)));
  expect(priced.map((items) => items.length)).toEqual([30]);
  vi.mocked(call).mockResolvedValue({ data: { id: "1", total: 30 } } as never);
  fireEvent.click(screen.getByRole("button"));
  await waitFor(() => expect(vi.mocked(call).mock.lastCall?.[2]).toMatchObject({ expected_tokens: 273 }));
});

it("shows the price before the upload if it does not depend on the file", async () => {
  changeDraft(effect.slug, () => EMPTY);
  mount({ isPriced: true });
  await screen.findByText(texts.plan.tokens(9));
});

it.each([
  ["the file that the price depends on is missing", { ...effect, priceNeedsInput: true }, EMPTY],
  ["a number is invalid", effect, draft({ texts: { steps: "many" } })],
  ["the price is fixed", { ...effect, hasFixedPrice: true }, draft()],
])("does not request a price while %s", async (_case, of, given) => {
  changeDraft(of.slug, () => given);
  mount({ of, isPriced: true });
  await screen.findByRole("button");
  expect(priced).toEqual([]);
});
