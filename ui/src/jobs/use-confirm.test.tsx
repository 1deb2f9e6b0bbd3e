import { act, fireEvent, render, screen } from "@testing-library/react";
import { Tooltip } from "radix-ui";
import { describe, expect, it } from "vitest";
import { type Confirm, type Confirmation, type Question, useConfirm } from "./use-confirm";

let confirm: Confirm;

function Page() {
  const { confirm: ask, dialog } = useConfirm();
  confirm = ask;
  return dialog;
}

async function ask(question: Partial<Question> = {}): Promise<{ answer: Promise<Confirmation | null> }> {
  render(
    <Tooltip.Provider>
      <Page />
    </Tooltip.Provider>,
  );
  let answer: Promise<Confirmation | null> = Promise.resolve(null);
  await act(async () => {
    answer = confirm({ title: "Delete the job?", text: "This cannot be undone.", yes: "Delete", ...question });
  });
  return { answer };
}

const click = (name: string) => act(async () => fireEvent.click(screen.getByRole("button", { name })));

describe("a confirmation", () => {
  it("resolves when the user agrees, with the state of its option", async () => {
    const { answer } = await ask({ option: "Keep the files" });
    fireEvent.click(screen.getByRole("checkbox", { name: "Keep the files" }));
    await click("Delete");
    expect(await answer).toEqual({ isOptionOn: true });
    expect(screen.queryByRole("dialog")).toBeNull();
  });

  it("resolves to null when the user closes it", async () => {
    const { answer } = await ask();
    await click("Close");
    expect(await answer).toBeNull();
  });

  it("lists at most five files", async () => {
    await ask({ files: ["1.png", "2.png", "3.png", "4.png", "5.png", "6.png", "7.png"] });
    expect(screen.getAllByRole("listitem")).toHaveLength(6);
    expect(screen.queryByText("6.png")).toBeNull();
  });
});
