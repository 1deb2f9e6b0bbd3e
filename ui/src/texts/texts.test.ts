import { expect, it } from "vitest";
import { gallery } from "./gallery";
import { queue } from "./queue";

const NAME = "\u05d7\u05ea\u05d5\u05dc\u202e";
const ISOLATED = "\u2068\u05d7\u05ea\u05d5\u05dc\u2069";

it("isolates right-to-left names", () => {
  const texts = [
    queue.itemOf(NAME, 1, 3),
    queue.progress(NAME),
    queue.livePreview(NAME),
    queue.slot(NAME),
    queue.select(NAME),
    queue.more(NAME),
    queue.movedTo(NAME, 2),
    queue.forgetView(NAME),
    gallery.heading(NAME, 2),
  ];
  for (const each of texts) {
    expect(each).toContain(ISOLATED);
    // drops bidi controls
    expect(each).not.toContain("\u202e");
  }
});

it("keeps left-to-right names unchanged", () => {
  expect(queue.more("a cat · 2")).toBe("Actions for a cat · 2");
});
