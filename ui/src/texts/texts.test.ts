import { expect, it } from "vitest";
import { gallery } from "./gallery";
import { queue } from "./queue";

const NAME = "\u05d7\u05ea\u05d5\u05dc\u202e";
const ISOLATED = "\u2068\u05d7\u05ea\u05d5\u05dc\u2069";

it("a name that is read from the right turns nothing around it in the queue", () => {
  const texts = [
    queue.itemOf(NAME, 1, 3),
    queue.progress(NAME),
    queue.livePreview(NAME),
    queue.lane(NAME),
    queue.select(NAME),
    queue.more(NAME),
    queue.movedTo(NAME, 2),
    queue.forgetView(NAME),
    gallery.heading(NAME, 2),
  ];
  for (const each of texts) {
    expect(each).toContain(ISOLATED);
    // what would turn the rest is left out
    expect(each).not.toContain("\u202e");
  }
});

it("a name of letters that are read from the left is as it is", () => {
  expect(queue.more("a cat · 2")).toBe("More for a cat · 2");
});
