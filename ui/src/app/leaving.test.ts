import { act, renderHook } from "@testing-library/react";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { closeToast, takeAction, toast, toasts } from "@/kit/Toast";
import { leave, useLeaving } from "./leaving";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => {
  vi.runAllTimers();
  vi.useRealTimers();
});

const newest = () => (toasts().at(-1) as unknown as { id: number }).id;
const hidden = () => [...renderHook(useLeaving).result.current];

it("what is deleted is out of sight at once, and gone when the message is", async () => {
  const go = vi.fn(async () => undefined);
  act(() => leave(["a"], "It will be deleted.", go));
  expect(hidden()).toEqual(["a"]);
  expect(go).not.toHaveBeenCalled();
  await act(() => vi.advanceTimersByTimeAsync(7000));
  expect(go).toHaveBeenCalledOnce();
  expect(hidden()).toEqual([]);
});

it("what is taken back is never sent", async () => {
  const go = vi.fn(async () => undefined);
  act(() => leave(["a", "b"], "They will be deleted.", go));
  act(() => takeAction(newest()));
  expect(hidden()).toEqual([]);
  await act(() => vi.advanceTimersByTimeAsync(60_000));
  expect(go).not.toHaveBeenCalled();
});

it("who closes the message does not wait for its time", async () => {
  const go = vi.fn(async () => undefined);
  act(() => leave(["a"], "It will be deleted.", go));
  await act(async () => closeToast(newest()));
  expect(go).toHaveBeenCalledOnce();
});

it("two of the same can be taken back one by one, and what is pushed out of sight is done", async () => {
  const [first, second] = [vi.fn(async () => undefined), vi.fn(async () => undefined)];
  act(() => leave(["a"], "It will be deleted.", first));
  act(() => leave(["b"], "It will be deleted.", second));
  expect(first).not.toHaveBeenCalled();
  act(() => takeAction(newest()));
  expect(hidden()).toEqual(["a"]);
  for (const each of ["1", "2", "3", "4"]) act(() => toast(each));
  await act(() => vi.advanceTimersByTimeAsync(0));
  expect(first).toHaveBeenCalledOnce();
  expect(second).not.toHaveBeenCalled();
});

it("a tab that nobody sees does it all the same", async () => {
  const isHidden = vi.spyOn(document, "hidden", "get").mockReturnValue(true);
  const go = vi.fn(async () => undefined);
  act(() => leave(["a"], "It will be deleted.", go));
  await act(() => vi.advanceTimersByTimeAsync(7000));
  expect(go).toHaveBeenCalledOnce();
  isHidden.mockRestore();
});
