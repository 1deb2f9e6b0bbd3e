import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { act, fireEvent, render, screen } from "@testing-library/react";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { call } from "@/api/client";
import { counts, keys } from "@/api/queries";
import { create as texts } from "@/texts/create";
import { changeDraft, EMPTY } from "./drafts";
import { useForm } from "./form";
import { PlanPanel } from "./PlanPanel";
import { missing } from "./queries";
import { choice, draft } from "./test-fixtures";
import { useEstimate } from "./use-estimate";
import { useSubmit } from "./use-submit";

vi.mock("@tanstack/react-router", () => ({ useNavigate: () => vi.fn() }));
vi.mock("@/api/client", async (original) => ({ ...(await original<object>()), call: vi.fn() }));
vi.mock("./BatchOptions", () => ({ BatchOptions: () => null }));
vi.mock("./JobPreview", () => ({ JobPreview: () => null }));

const COMMAND = { argv: null, isShown: false, problem: null, errors: {} };
/** Requests that the server has not answered. */
let open: { path: string; answer: (jobs: number) => Promise<void> }[] = [];

beforeEach(() => {
  vi.useFakeTimers();
  open = [];
  vi.mocked(call).mockImplementation(
    (_method: string, path: string) =>
      new Promise((resolve) => {
        const answer = async (jobs: number) => {
          const data = { id: "b", total: jobs, jobs, axes: [], labels: [], warnings: [], missing: null, workers: 1 };
          await act(async () => resolve({ data } as never));
          await act(() => vi.advanceTimersByTimeAsync(0));
        };
        open.push({ path, answer });
      }),
  );
});
afterEach(() => {
  vi.useRealTimers();
  changeDraft(choice.slug, () => EMPTY);
});

function Harness() {
  const form = useForm(choice);
  const { found, isFresh, folderProblem } = useEstimate(form, true);
  const submission = useSubmit(form, { isDesk: true });
  return <PlanPanel {...{ form, submission, found, isFresh, folderProblem }} command={COMMAND} />;
}

function mount(): void {
  const client = new QueryClient({ defaultOptions: { queries: { staleTime: Number.POSITIVE_INFINITY } } });
  client.setQueryData(keys.me, { id: "1", email: "desk@localhost", is_admin: true });
  client.setQueryData(keys.desk, { is_guest: false, output_folder: "/outputs" });
  client.setQueryData(counts.queryKey, { counts: {}, waiting: 0, pausedAt: null } as never);
  client.setQueryData(missing(choice).queryKey, null as never);
  render(
    <QueryClientProvider client={client}>
      <Harness />
    </QueryClientProvider>,
  );
}

const type = (steps: string) => act(async () => changeDraft(choice.slug, () => draft({ sweep: { steps } })));
const settle = () => act(() => vi.advanceTimersByTimeAsync(250));
const shown = () => screen.getByRole("button").textContent ?? "";

it("shows the number of jobs only while it matches the typed values", async () => {
  await type("10,20");
  mount();
  await settle();
  await open[0]?.answer(4);
  expect(shown()).toContain(texts.plan.add(4));
  // the timer runs
  await type("10,20,30");
  expect(shown()).toContain(texts.plan.add(null));
  expect(screen.getByText(texts.plan.counting)).toBeTruthy();
  // the server counts
  await settle();
  expect(open).toHaveLength(2);
  expect(shown()).toContain(texts.plan.add(null));
  await open[1]?.answer(6);
  expect(shown()).toContain(texts.plan.add(6));
});

it("adds jobs after the server has counted them", async () => {
  await type("10,20");
  mount();
  await settle();
  await open[0]?.answer(4);
  await type("10,20,30");
  fireEvent.click(screen.getByRole("button"));
  await act(() => vi.advanceTimersByTimeAsync(0));
  expect(open.map((each) => each.path).slice(1)).toEqual(["/api/desk/batches/estimate"]);
  await open[1]?.answer(6);
  expect(open.map((each) => each.path).slice(2)).toEqual(["/api/desk/batches"]);
});
