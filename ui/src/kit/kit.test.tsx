import { fireEvent, render } from "@testing-library/react";
import { Tooltip } from "radix-ui";
import { act } from "react";
import { createRoot } from "react-dom/client";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { Dialog } from "./Dialog";
import { TextField } from "./fields";
import { Poster } from "./Poster";
import { Sparkline } from "./Sparkline";
import { hold, letGo, toast, toasts } from "./Toast";

(globalThis as Record<string, unknown>).IS_REACT_ACT_ENVIRONMENT = true;

beforeEach(() => void vi.useFakeTimers());
afterEach(() => {
  vi.runAllTimers();
  vi.useRealTimers();
});

const shownTexts = () => toasts().map((each) => each.text);

it("a message goes after its time, also when another one was used and is gone", () => {
  toast("first");
  const held = (toasts()[0] as unknown as { id: number }).id;
  hold(held);
  toast("second");
  vi.advanceTimersByTime(7000);
  expect(shownTexts()).toEqual(["first"]);
  letGo(held);
  vi.advanceTimersByTime(7000);
  expect(shownTexts()).toEqual([]);
});

it("a newer message about the same takes the place of the older one", () => {
  toast({ text: "37 jobs paused.", topic: "bulk" });
  toast("Added 1 job.");
  toast({ text: "37 jobs resumed.", topic: "bulk" });
  expect(shownTexts()).toEqual(["Added 1 job.", "37 jobs resumed."]);
});

it("a dialog that asks for a name has the cursor in its field", async () => {
  const place = document.body.appendChild(document.createElement("div"));
  const root = createRoot(place);
  await act(async () =>
    root.render(
      <Tooltip.Provider>
        <Dialog isOpen onClose={() => undefined} title="New collection">
          <TextField aria-label="Name" />
        </Dialog>
      </Tooltip.Provider>,
    ),
  );
  await act(async () => void vi.runAllTimers());
  expect(document.activeElement?.getAttribute("aria-label")).toBe("Name");
  await act(async () => root.unmount());
});

it("a poster that cannot be shown is left out, and another one is tried", () => {
  const { container, rerender } = render(<Poster url="/files/a.webp">nothing</Poster>);
  const image = container.querySelector("img") as HTMLImageElement;
  fireEvent.error(image);
  expect(container.innerHTML).toBe("nothing");
  rerender(<Poster url="/files/b.webp">nothing</Poster>);
  expect(container.querySelector("img")?.getAttribute("src")).toBe("/files/b.webp");
});

it("a sparkline stays in its room, also where there was more than there can be now", () => {
  const { container } = render(<Sparkline values={[16, 2]} maximum={2} name="GPUs busy" />);
  expect(container.querySelector("polyline")?.getAttribute("points")).toBe("0.00,0.00 100.00,21.00");
});
