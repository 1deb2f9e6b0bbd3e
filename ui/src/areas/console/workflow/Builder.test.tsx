import { fireEvent, render, screen, within } from "@testing-library/react";
import { useState } from "react";
import { describe, expect, it } from "vitest";
import type { FormDefinition } from "../catalogue/builder";
import { Builder } from "./Builder";

const START: FormDefinition = {
  graph: { "1": { class_type: "KSampler", inputs: { steps: "{{STEPS}}", cfg: 7.5 } } },
  properties: [
    { key: "steps", type: "number", placeholder: "{{STEPS}}", default_value: 20, maximum: 10, user_configurable: true },
  ],
};

let form: FormDefinition;

function Harness() {
  const [built, setBuilt] = useState(START);
  form = built;
  return <Builder built={built} onChange={setBuilt} problems={{}} />;
}

const fields = () =>
  within(screen.getByRole("list", { name: "User fields" }))
    .getAllByRole("listitem")
    .map((each) => each.getAttribute("data-property"));

describe("the form builder", () => {
  it("turns a graph input into a field and opens it", () => {
    render(<Harness />);
    fireEvent.click(screen.getByRole("button", { name: "Add cfg of KSampler", hidden: true }));
    expect(fields()).toEqual(["steps", "cfg"]);
    expect(form.graph["1"]?.inputs.cfg).toBe("{{CFG}}");
    expect(screen.getByDisplayValue("7.5")).toBeTruthy();
  });

  it("writes the default back when a field is removed", () => {
    render(<Harness />);
    fireEvent.click(screen.getByRole("button", { name: /^Steps/ }));
    fireEvent.click(screen.getByRole("button", { name: "Remove from form" }));
    expect(form.properties).toEqual([]);
    expect(form.graph["1"]?.inputs.steps).toBe(20);
  });

  it("marks a default outside of the range", () => {
    render(<Harness />);
    fireEvent.click(screen.getByRole("button", { name: /^Steps/ }));
    expect(screen.getByText("Must not exceed the maximum.")).toBeTruthy();
    fireEvent.change(screen.getByDisplayValue("20"), { target: { value: "8" } });
    expect(screen.queryByText("Must not exceed the maximum.")).toBeNull();
  });
});
