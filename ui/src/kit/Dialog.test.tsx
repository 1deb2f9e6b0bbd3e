import { act, fireEvent, render, screen } from "@testing-library/react";
import { Tooltip } from "radix-ui";
import type { ReactNode } from "react";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { Dialog } from "./Dialog";
import { TextField } from "./Field";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

async function renderDialog(dialog: ReactNode) {
  render(<Tooltip.Provider>{dialog}</Tooltip.Provider>);
  await act(async () => void vi.runAllTimers());
}

describe("a dialog", () => {
  it("focuses its first text field", async () => {
    await renderDialog(
      <Dialog isOpen onClose={vi.fn()} title="New collection">
        <TextField aria-label="Name" />
      </Dialog>,
    );
    expect(document.activeElement).toBe(screen.getByLabelText("Name"));
  });

  it("closes with Escape", async () => {
    const onClose = vi.fn();
    await renderDialog(<Dialog isOpen onClose={onClose} title="New collection" />);
    fireEvent.keyDown(screen.getByRole("dialog"), { key: "Escape" });
    expect(onClose).toHaveBeenCalledOnce();
  });

  it("cannot be closed if it is firm", async () => {
    const onClose = vi.fn();
    await renderDialog(<Dialog isOpen isFirm onClose={onClose} title="Sign in again" />);
    fireEvent.keyDown(screen.getByRole("dialog"), { key: "Escape" });
    expect(onClose).not.toHaveBeenCalled();
    expect(screen.queryByRole("button", { name: "Close" })).toBeNull();
  });

  it("disables the shortcuts of the page", async () => {
    await renderDialog(<Dialog isOpen onClose={vi.fn()} title="New collection" />);
    expect(document.querySelector("[data-owns-keys]")).not.toBeNull();
  });
});
