import { act, renderHook } from "@testing-library/react";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { closeToast, runToastAction, shownToasts, toast } from "./Toast";
import { deleteWithUndo, usePendingDeletes } from "./undoable-delete";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => {
  vi.runAllTimers();
  vi.useRealTimers();
});

const lastToast = () => shownToasts().at(-1)?.id ?? 0;
const hidden = () => [...renderHook(usePendingDeletes).result.current];
const request = () => vi.fn(async () => undefined);

describe("deleting with undo", () => {
  it("hides the item at once and deletes it when the message closes", async () => {
    const send = request();
    act(() => deleteWithUndo(["a"], "It will be deleted.", send));
    expect(hidden()).toEqual(["a"]);
    expect(send).not.toHaveBeenCalled();
    await act(() => vi.advanceTimersByTimeAsync(7000));
    expect(send).toHaveBeenCalledOnce();
    expect(hidden()).toEqual([]);
  });

  it("sends no request after an undo", async () => {
    const send = request();
    act(() => deleteWithUndo(["a", "b"], "They will be deleted.", send));
    act(() => runToastAction(lastToast()));
    expect(hidden()).toEqual([]);
    await act(() => vi.advanceTimersByTimeAsync(60_000));
    expect(send).not.toHaveBeenCalled();
  });

  it("deletes at once when the user closes the message", async () => {
    const send = request();
    act(() => deleteWithUndo(["a"], "It will be deleted.", send));
    await act(async () => closeToast(lastToast()));
    expect(send).toHaveBeenCalledOnce();
  });

  it("can be undone for each delete, and finishes the ones that newer messages push out", async () => {
    const [first, second] = [request(), request()];
    act(() => deleteWithUndo(["a"], "It will be deleted.", first));
    act(() => deleteWithUndo(["b"], "It will be deleted.", second));
    expect(first).not.toHaveBeenCalled();
    act(() => runToastAction(lastToast()));
    expect(hidden()).toEqual(["a"]);
    for (const each of ["1", "2", "3", "4"]) act(() => toast(each));
    await act(() => vi.advanceTimersByTimeAsync(0));
    expect(first).toHaveBeenCalledOnce();
    expect(second).not.toHaveBeenCalled();
  });

  it("deletes when the page is closed, but not after an undo", async () => {
    const [first, second] = [request(), request()];
    act(() => deleteWithUndo(["a"], "It will be deleted.", first));
    act(() => deleteWithUndo(["b"], "It will be deleted.", second));
    act(() => runToastAction(lastToast()));
    await act(async () => dispatchEvent(new Event("pagehide")));
    expect(first).toHaveBeenCalledOnce();
    expect(second).not.toHaveBeenCalled();
  });

  it("warns before the page closes if it has more to delete than a closing page can send", async () => {
    const leave = () => dispatchEvent(new Event("beforeunload", { cancelable: true }));
    act(() => deleteWithUndo(["a"], "It will be deleted.", request()));
    expect(leave()).toBe(true);
    const many = Array.from({ length: 2000 }, (_, index) => String(index));
    act(() => deleteWithUndo(many, "They will be deleted.", request()));
    expect(leave()).toBe(false);
    await act(() => vi.advanceTimersByTimeAsync(7000));
  });

  it("also finishes in a hidden tab", async () => {
    const isHidden = vi.spyOn(document, "hidden", "get").mockReturnValue(true);
    const send = request();
    act(() => deleteWithUndo(["a"], "It will be deleted.", send));
    await act(() => vi.advanceTimersByTimeAsync(7000));
    expect(send).toHaveBeenCalledOnce();
    isHidden.mockRestore();
  });
});
