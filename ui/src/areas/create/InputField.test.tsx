import { act, fireEvent, render, screen } from "@testing-library/react";
import { beforeEach, describe, expect, it } from "vitest";
import { TooltipProvider } from "@/kit";
import { changeDraft, draftOf, EMPTY } from "./drafts";
import { useForm } from "./form";
import { InputField } from "./InputField";
import { choice, named } from "./test-fixtures";

function Harness({ field }: { field: string }) {
  const form = useForm(choice);
  return (
    <TooltipProvider>
      <InputField form={form} input={named(field)} />
    </TooltipProvider>
  );
}

const textOf = (field: string) => draftOf(choice.slug).texts[field];

beforeEach(() => changeDraft(choice.slug, () => EMPTY));

describe("a number field", () => {
  it("reports a problem when it loses focus, not while typing", () => {
    render(<Harness field="steps" />);
    const steps = screen.getByRole("textbox");
    fireEvent.change(steps, { target: { value: "101" } });
    expect(screen.queryByRole("alert")).toBeNull();
    fireEvent.blur(steps);
    expect(screen.getByRole("alert").textContent).toBe("Must be at most 100.");
  });

  it("steps with the arrow keys", () => {
    render(<Harness field="steps" />);
    fireEvent.keyDown(screen.getByRole("textbox"), { key: "ArrowUp" });
    expect(textOf("steps")).toBe("21");
  });

  it("resets to its default", () => {
    render(<Harness field="steps" />);
    fireEvent.change(screen.getByRole("textbox"), { target: { value: "30" } });
    fireEvent.click(screen.getByRole("button", { name: "Reset steps" }));
    expect(textOf("steps")).toBeUndefined();
  });
});

describe("a seed field", () => {
  it("restores the last seed when it is locked again", () => {
    render(<Harness field="seed" />);
    fireEvent.change(screen.getByRole("textbox"), { target: { value: "18446744073709551615" } });
    fireEvent.click(screen.getByRole("button", { name: "Use a new seed for each job" }));
    expect(textOf("seed")).toBe("");
    fireEvent.click(screen.getByRole("button", { name: "Lock seed" }));
    expect(textOf("seed")).toBe("18446744073709551615");
  });

  it("locks the seed that it rolls", () => {
    render(<Harness field="seed" />);
    fireEvent.click(screen.getByRole("button", { name: "New random seed" }));
    expect(textOf("seed")).toMatch(/^\d+$/);
    expect(screen.getByRole("button", { name: "Use a new seed for each job" })).toBeTruthy();
  });

  it("offers increment or the same seed only for a batch", () => {
    render(<Harness field="seed" />);
    fireEvent.change(screen.getByRole("textbox"), { target: { value: "7" } });
    expect(screen.queryByText("Increment")).toBeNull();
    act(() => changeDraft(choice.slug, (draft) => ({ ...draft, tries: "3" })));
    expect(screen.getByText("Increment")).toBeTruthy();
  });
});
