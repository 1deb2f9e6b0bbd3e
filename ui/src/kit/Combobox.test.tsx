import { fireEvent, render, screen } from "@testing-library/react";
import { beforeEach, describe, expect, it, vi } from "vitest";
import { Combobox } from "./Combobox";

// cmdk scrolls the highlighted item into view, which happy-dom does not support
beforeEach(() => {
  Element.prototype.scrollIntoView = vi.fn();
});

const CHOICES = [{ value: "euler", name: "Euler" }, { value: "dpmpp_2m", name: "DPM++ 2M" }, { value: "uni_pc" }];

function open(onChange = vi.fn()) {
  render(<Combobox aria-label="Sampler" value="euler" choices={CHOICES} onChange={onChange} />);
  fireEvent.click(screen.getByRole("combobox", { name: "Sampler" }));
  return { onChange, search: screen.getByPlaceholderText("Search") };
}

const options = () => screen.getAllByRole("option").map((each) => each.textContent);

describe("a combobox", () => {
  it("shows the name of its value", () => {
    open();
    expect(screen.getByRole("combobox", { name: "Sampler" }).textContent).toBe("Euler");
  });

  it("finds choices by name and by value", () => {
    const { search } = open();
    fireEvent.change(search, { target: { value: "++" } });
    expect(options()).toEqual(["DPM++ 2M"]);
    fireEvent.change(search, { target: { value: "uni" } });
    expect(options()).toEqual(["uni_pc"]);
  });

  it("chooses with the keyboard and closes", () => {
    const { onChange, search } = open();
    fireEvent.change(search, { target: { value: "uni" } });
    fireEvent.keyDown(search, { key: "Enter" });
    expect(onChange).toHaveBeenCalledWith("uni_pc");
    expect(screen.queryByRole("option")).toBeNull();
  });
});
