import { render, screen } from "@testing-library/react";
import { beforeEach, describe, expect, it } from "vitest";
import { TooltipProvider } from "@/kit";
import { changeDraft, EMPTY } from "./drafts";
import { useForm } from "./form";
import { PromptField } from "./PromptField";
import { choice, named } from "./test-fixtures";

interface HarnessProps {
  isDynamic: boolean;
  canSweep: boolean;
}

function Harness({ isDynamic, canSweep }: HarnessProps) {
  const form = useForm(choice);
  const input = { ...named("prompt"), is_dynamic_prompt: isDynamic };
  return (
    <TooltipProvider>
      <PromptField form={form} input={input} hint={undefined} canSweep={canSweep} />
    </TooltipProvider>
  );
}

beforeEach(() => changeDraft(choice.slug, () => ({ ...EMPTY, texts: { prompt: "a {red|blue} fox" } })));

describe("a prompt with choices", () => {
  it("is used as typed unless wildcards are switched on", () => {
    render(<Harness isDynamic={false} canSweep />);
    expect(screen.getByText("As typed")).toBeTruthy();
  });

  it("cannot be used as typed if it is a dynamic prompt", () => {
    render(<Harness isDynamic canSweep />);
    expect(screen.queryByText("As typed")).toBeNull();
    expect(screen.getByText("Random")).toBeTruthy();
  });

  it("states on a server that each job chooses an option", () => {
    render(<Harness isDynamic canSweep={false} />);
    expect(screen.getByText("Each job chooses one option of {a|b}.")).toBeTruthy();
  });
});
