import { fireEvent, render, screen } from "@testing-library/react";
import { expect, it, vi } from "vitest";
import { TypedFilter } from "./filters";

function renderFilter(type: "text" | "date") {
  const onChange = vi.fn();
  const filter = (value: string) => <TypedFilter name="From" type={type} value={value} onChange={onChange} />;
  const { rerender } = render(filter(""));
  return { onChange, show: (value: string) => rerender(filter(value)), input: screen.getByLabelText("From") };
}

it("applies a date at once, without losing the focus", () => {
  const { input, onChange, show } = renderFilter("date");
  input.focus();
  for (const value of ["0002-11-19", "0020-11-19", "0202-11-19", "2026-11-19"]) {
    fireEvent.change(input, { target: { value } });
  }
  expect(onChange.mock.calls).toEqual([["2026-11-19"]]);
  show("2026-11-19");
  expect(document.activeElement).toBe(input);
  fireEvent.change(input, { target: { value: "" } });
  expect(onChange).toHaveBeenLastCalledWith("");
});

it("applies text on Enter only, and empties the field when the filter is cleared", () => {
  const { input, onChange, show } = renderFilter("text");
  input.focus();
  fireEvent.change(input, { target: { value: "cat" } });
  expect(onChange).not.toHaveBeenCalled();
  fireEvent.keyDown(input, { key: "Enter" });
  expect(onChange.mock.calls).toEqual([["cat"]]);
  show("cat");
  show("");
  expect(input).toHaveProperty("value", "");
});
