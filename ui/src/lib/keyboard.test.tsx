import { render } from "@testing-library/react";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { type KeyAction, keyboard, keyLabels, useKeys } from "./keyboard";

beforeEach(() => {
  addEventListener("keydown", keyboard.onKeyDown);
  addEventListener("keydown", keyboard.onKeyDownCapture, true);
});
afterEach(() => {
  removeEventListener("keydown", keyboard.onKeyDown);
  removeEventListener("keydown", keyboard.onKeyDownCapture, true);
  document.body.innerHTML = "";
});

const press = (key: string, target: Element = document.body, init: KeyboardEventInit = {}) =>
  target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true, ...init }));

const shortcut = (keys: string, run: () => void, options: Partial<KeyAction> = {}): KeyAction => ({
  keys,
  run,
  name: keys,
  group: "",
  ...options,
});

function Shortcuts({ actions }: { actions: readonly KeyAction[] }) {
  useKeys(actions);
  return null;
}

describe("shortcuts", () => {
  it("run the newest registration of a key", () => {
    const [older, newer] = [vi.fn(), vi.fn()];
    render(<Shortcuts actions={[shortcut("q", older)]} />);
    const { unmount } = render(<Shortcuts actions={[shortcut("q", newer)]} />);
    press("q");
    unmount();
    press("q");
    expect([older, newer].map((each) => each.mock.calls.length)).toEqual([1, 1]);
  });

  it("run the newest handler after a render", () => {
    const [first, second] = [vi.fn(), vi.fn()];
    const { rerender } = render(<Shortcuts actions={[shortcut("q", first)]} />);
    rerender(<Shortcuts actions={[shortcut("q", second)]} />);
    press("q");
    expect([first, second].map((each) => each.mock.calls.length)).toEqual([0, 1]);
  });

  it("can be sequences", () => {
    const [letter, sequence] = [vi.fn(), vi.fn()];
    render(<Shortcuts actions={[shortcut("q", letter), shortcut("g q", sequence)]} />);
    press("q");
    press("g");
    press("q");
    expect([letter, sequence].map((each) => each.mock.calls.length)).toEqual([1, 1]);
  });

  it("do not fire while the user types, except for `whileTyping`", () => {
    const [letter, palette] = [vi.fn(), vi.fn()];
    render(<Shortcuts actions={[shortcut("j", letter), shortcut("mod+k", palette, { whileTyping: true })]} />);
    const input = document.body.appendChild(document.createElement("input"));
    press("j", input);
    press("k", input, { ctrlKey: true });
    expect([letter, palette].map((each) => each.mock.calls.length)).toEqual([0, 1]);
  });

  it("do not fire while a dialog is open, except for `overDialogs`", () => {
    const [select, add, palette] = [vi.fn(), vi.fn(), vi.fn()];
    render(
      <Shortcuts
        actions={[
          shortcut("x", select),
          shortcut("mod+Enter", add, { whileTyping: true }),
          shortcut("mod+k", palette, { whileTyping: true, overDialogs: true }),
        ]}
      />,
    );
    const dialog = document.body.appendChild(document.createElement("div"));
    dialog.dataset.ownsKeys = "";
    const input = dialog.appendChild(document.createElement("input"));
    press("x");
    press("Enter", input, { ctrlKey: true });
    press("k", document.body, { ctrlKey: true });
    expect([select, add, palette].map((each) => each.mock.calls.length)).toEqual([0, 0, 1]);
  });

  it("with `isFirst` hide the event from the focused element", () => {
    const [run, listen] = [vi.fn(), vi.fn()];
    render(<Shortcuts actions={[shortcut("mod+Enter", run, { isFirst: true })]} />);
    const button = document.body.appendChild(document.createElement("button"));
    button.addEventListener("keydown", listen);
    press("Enter", button, { ctrlKey: true });
    expect([run, listen].map((each) => each.mock.calls.length)).toEqual([1, 0]);
    press("Enter", button);
    expect([run, listen].map((each) => each.mock.calls.length)).toEqual([1, 1]);
  });
});

it("key labels are grouped by the steps of a sequence", () => {
  expect(keyLabels("g q")).toEqual([["G"], ["Q"]]);
  expect(keyLabels("mod+Enter")).toEqual([["Ctrl", "↵"]]);
  expect(keyLabels(" ")).toEqual([["Space"]]);
});
