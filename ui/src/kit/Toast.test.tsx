import { act, fireEvent, render, screen } from "@testing-library/react";
import { Tooltip } from "radix-ui";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { shownToasts, startTimer, stopTimer, Toasts, toast } from "./Toast";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => {
  act(() => void vi.runAllTimers());
  vi.useRealTimers();
});

const texts = () => shownToasts().map((each) => each.text);
const lastId = () => shownToasts().at(-1)?.id ?? 0;

describe("toasts", () => {
  it("stay open while the user points at them, without keeping others open", () => {
    toast("first");
    const first = lastId();
    stopTimer(first);
    toast("second");
    vi.advanceTimersByTime(7000);
    expect(texts()).toEqual(["first"]);
    startTimer(first);
    vi.advanceTimersByTime(7000);
    expect(texts()).toEqual([]);
  });

  it("replace an older one with the same topic or text", () => {
    toast({ text: "37 jobs paused.", topic: "bulk" });
    toast("Added 1 job.");
    toast("Added 1 job.");
    toast({ text: "37 jobs resumed.", topic: "bulk" });
    expect(texts()).toEqual(["Added 1 job.", "37 jobs resumed."]);
  });

  it("show at most four, and close the oldest", () => {
    const onClose = vi.fn();
    toast({ text: "0", onClose });
    for (const each of ["1", "2", "3", "4"]) toast(each);
    expect(texts()).toEqual(["1", "2", "3", "4"]);
    expect(onClose).toHaveBeenCalledOnce();
  });

  it("run their action instead of `onClose`", () => {
    const [run, onClose] = [vi.fn(), vi.fn()];
    render(
      <Tooltip.Provider>
        <Toasts />
      </Tooltip.Provider>,
    );
    act(() => toast({ text: "Deleted.", action: { name: "Undo", run }, onClose }));
    fireEvent.click(screen.getByRole("button", { name: "Undo" }));
    expect([run, onClose].map((each) => each.mock.calls.length)).toEqual([1, 0]);
    expect(texts()).toEqual([]);
  });
});
