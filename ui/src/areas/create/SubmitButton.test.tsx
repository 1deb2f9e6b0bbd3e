import { fireEvent, render, screen } from "@testing-library/react";
import { beforeEach, expect, it, vi } from "vitest";
import type { Command } from "./command";
import { changeDraft, type Draft, EMPTY } from "./drafts";
import { useForm } from "./form";
import type { Choice } from "./inputs";
import { SubmitButton } from "./SubmitButton";
import { choice, draft, file } from "./test-fixtures";
import type { SubmitState } from "./use-submit";

const COMMAND: Command = { argv: null, isShown: false, problem: null, errors: { template: "Not found." } };
const submit = vi.fn(async () => undefined);
const IDLE: SubmitState = { isBusy: false, problem: null, missing: null, price: null, isConfirming: false, submit };

function Harness({ of, ...state }: { of: Choice; count: number; isMissing: boolean; isPaused: boolean }) {
  const form = useForm(of);
  return <SubmitButton form={form} submission={IDLE} command={COMMAND} folderProblem={null} {...state} />;
}

function button(next: Draft, { of = choice, count = 1, isMissing = false, isPaused = false } = {}) {
  changeDraft(of.slug, () => next);
  render(<Harness of={of} count={count} isMissing={isMissing} isPaused={isPaused} />);
  return screen.getByRole<HTMLButtonElement>("button");
}

beforeEach(() => submit.mockClear());

it("shows the number of jobs", () => {
  expect(button(draft(), { count: 12 }).textContent).toContain("Add 12 jobs");
});

it("tells the user that jobs wait in a paused queue", () => {
  expect(button(draft(), { count: 12, isPaused: true }).textContent).toContain("Add 12 jobs to the paused queue");
});

it("asks for a required file", () => {
  expect(button(EMPTY).textContent).toContain("Choose an image");
});

it("waits for uploads", () => {
  const uploading = button(draft({ files: { image: [{ ...file("a.png"), id: null }] } }));
  expect(uploading.textContent).toContain("Uploading 1 file…");
  expect(uploading.disabled).toBe(true);
});

it("submits despite missing requirements", () => {
  const anyway = button(draft(), { isMissing: true });
  expect(anyway.textContent).toContain("Add anyway");
  fireEvent.click(anyway);
  expect(submit).toHaveBeenCalledWith(true);
});

it("shows the command of a script before it runs it", () => {
  const show = button(draft(), { of: { ...choice, isScript: true } });
  expect(show.textContent).toContain("Show command");
  fireEvent.click(show);
  expect(submit).not.toHaveBeenCalled();
});
