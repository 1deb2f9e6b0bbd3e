import { act, fireEvent, render, screen } from "@testing-library/react";
import { Tooltip } from "radix-ui";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { SearchField } from "./SearchField";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

function renderField(value = "") {
  const onChange = vi.fn();
  render(
    <Tooltip.Provider>
      <SearchField value={value} placeholder="Search jobs" onChange={onChange} />
    </Tooltip.Provider>,
  );
  return { onChange, input: screen.getByRole<HTMLInputElement>("searchbox") };
}

describe("a search field", () => {
  it("reports the text once, after the last keystroke", () => {
    const { onChange, input } = renderField();
    for (const value of ["c", "ca", "cat"]) {
      fireEvent.change(input, { target: { value } });
      act(() => void vi.advanceTimersByTime(100));
    }
    expect(onChange).not.toHaveBeenCalled();
    act(() => void vi.advanceTimersByTime(100));
    expect(onChange.mock.calls).toEqual([["cat"]]);
  });

  it("clears with the first Escape and loses the focus with the second", () => {
    const { input } = renderField("cat");
    input.focus();
    fireEvent.keyDown(input, { key: "Escape" });
    expect(input.value).toBe("");
    expect(document.activeElement).toBe(input);
    fireEvent.keyDown(input, { key: "Escape" });
    expect(document.activeElement).not.toBe(input);
  });
});
