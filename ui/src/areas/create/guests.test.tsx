import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { render, screen } from "@testing-library/react";
import type { ReactNode } from "react";
import { afterEach, expect, it, vi } from "vitest";
import { effects, keys, workflows } from "@/api/queries";
import { create as texts } from "@/texts/create";
import { desk as deskTexts } from "@/texts/desk";
import { BatchOptions } from "./BatchOptions";
import { changeDraft, EMPTY } from "./drafts";
import { useForm } from "./form";
import Create from "./index";
import { choice, draft } from "./test-fixtures";
import { WorkflowEditor } from "./WorkflowEditor";

vi.mock("@tanstack/react-router", () => ({ useSearch: () => ({}), useNavigate: () => vi.fn() }));
vi.mock("./FormView", () => ({ FormView: ({ children }: { children: ReactNode }) => <div>{children}</div> }));
vi.mock("./PlanPanel", () => ({ PlanPanel: () => null }));
vi.mock("./WorkflowMenu", () => ({ WorkflowMenu: () => <button type="button">menu</button> }));
vi.mock("./command", () => ({ useCommand: () => null }));
vi.mock("./use-estimate", () => ({ useEstimate: () => ({ found: undefined, folderProblem: null }) }));
vi.mock("./use-submit", () => ({ useSubmit: () => null }));
vi.mock("./prefill", () => ({ useUrlPrefill: () => undefined }));

afterEach(() => changeDraft(choice.slug, () => EMPTY));

function renderFor(isGuest: boolean, children: ReactNode, hasOwnWorkflows = true) {
  const client = new QueryClient({ defaultOptions: { queries: { staleTime: Number.POSITIVE_INFINITY } } });
  client.setQueryData(keys.me, {
    id: "1",
    email: "desk@localhost",
    is_admin: true,
    own_workflows: hasOwnWorkflows ? { tokens_per_second: 0, max_seconds: null, reserved_tokens: 0 } : null,
  });
  client.setQueryData(keys.desk, { is_guest: isGuest, script_workflow: null });
  client.setQueryData(workflows.queryKey, []);
  client.setQueryData(effects.queryKey, []);
  render(<QueryClientProvider client={client}>{children}</QueryClientProvider>);
}

function Options() {
  return <BatchOptions form={useForm(choice)} root="/outputs" />;
}

it("a guest cannot set a URL to notify", () => {
  renderFor(true, <Options />);
  expect(screen.queryByPlaceholderText(texts.plan.whenDonePlaceholder)).toBeNull();
});

it("a guest can remove the URL of an earlier draft", () => {
  changeDraft(choice.slug, () => draft({ notify: "json://example.com" }));
  renderFor(true, <Options />);
  expect(screen.getByDisplayValue("json://example.com")).toBeTruthy();
});

it("the owner can set a URL to notify", () => {
  renderFor(false, <Options />);
  expect(screen.getByPlaceholderText(texts.plan.whenDonePlaceholder)).toBeTruthy();
});

it.each([true, false])("the menu of a workflow is for the owner (guest: %s)", (isGuest) => {
  renderFor(isGuest, <WorkflowEditor choice={{ ...choice, kind: "workflow" }} all={[]} reported={null} />);
  expect(screen.queryAllByRole("button", { name: "menu" })).toHaveLength(isGuest ? 0 : 1);
});

it("a guest cannot add a workflow and sees the reason", () => {
  renderFor(true, <Create />);
  const [button, ...others] = screen.getAllByRole<HTMLButtonElement>("button", { name: texts.addWorkflow });
  expect([button?.disabled, others.length]).toEqual([true, 0]);
  expect(screen.getByText(deskTexts.guest.noWorkflow)).toBeTruthy();
  expect(screen.getByText(texts.dropHintGuest)).toBeTruthy();
});

it("the owner can add a workflow", () => {
  renderFor(false, <Create />);
  const buttons = screen.getAllByRole<HTMLButtonElement>("button", { name: texts.addWorkflow });
  expect(buttons.map((each) => each.disabled)).toEqual([false, false]);
});

it("a user who can only run effects is not offered to add a workflow", () => {
  renderFor(false, <Create />, false);
  expect(screen.queryAllByRole("button", { name: texts.addWorkflow })).toEqual([]);
  expect(screen.getByText(texts.dropHintGuest)).toBeTruthy();
  expect(screen.getByText(texts.noEffectsAdvice)).toBeTruthy();
});
