import { fireEvent, render, screen } from "@testing-library/react";
import { useState } from "react";
import { describe, expect, it, vi } from "vitest";
import type { Whole } from "@/api/json";
import { NumberField, parseNumber } from "./NumberField";

describe("a typed number", () => {
  it("keeps every digit of a seed", () =>
    expect(parseNumber("18446744073709551615", true)).toBe(18446744073709551615n));
  it("may have a decimal comma", () => expect(parseNumber("7,5", false)).toBe(7.5));
  it("is null if it is invalid", () =>
    expect([parseNumber("a", true), parseNumber("1.5", true)]).toEqual([null, null]));
});

function Steps({ onChange, start = 20 }: { onChange?: (value: Whole | null) => void; start?: Whole | null }) {
  const [value, setValue] = useState<Whole | null>(start);
  const change = (next: Whole | null) => {
    setValue(next);
    onChange?.(next);
  };
  return <NumberField aria-label="Steps" value={value} onChange={change} minimum={1} maximum={21} isWhole />;
}

const field = () => screen.getByRole<HTMLInputElement>("spinbutton", { name: "Steps" });

describe("a number field", () => {
  it("steps with the arrow keys, within its limits", () => {
    render(<Steps />);
    for (const key of ["ArrowUp", "ArrowUp", "ArrowUp"]) fireEvent.keyDown(field(), { key });
    expect(field().value).toBe("21");
    fireEvent.keyDown(field(), { key: "ArrowDown" });
    expect(field().value).toBe("20");
  });

  it("marks invalid text and does not report it", () => {
    const onChange = vi.fn();
    render(<Steps onChange={onChange} />);
    fireEvent.change(field(), { target: { value: "2x" } });
    expect(field().getAttribute("aria-invalid")).toBe("true");
    expect(onChange).not.toHaveBeenCalled();
    fireEvent.blur(field());
    expect(field().value).toBe("20");
  });

  it("reports null when it is emptied", () => {
    const onChange = vi.fn();
    render(<Steps onChange={onChange} />);
    fireEvent.change(field(), { target: { value: "" } });
    expect(onChange).toHaveBeenCalledWith(null);
  });

  it("steps a 64-bit seed without rounding", () => {
    const onChange = vi.fn();
    render(<NumberField aria-label="Steps" value={18446744073709551614n} onChange={onChange} isWhole />);
    fireEvent.keyDown(field(), { key: "ArrowUp" });
    expect(onChange).toHaveBeenCalledWith(18446744073709551615n);
  });
});
