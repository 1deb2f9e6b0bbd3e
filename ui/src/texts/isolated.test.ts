import { expect, it } from "vitest";
import { gallery } from "./gallery";

it("right-to-left names do not reorder the text around them", () => {
  expect(gallery.heading("שלום", 3)).toBe("\u2068שלום\u2069 · 3 outputs");
  // override characters in a name are removed
  expect(gallery.collections.removeTitle("a\u202egnp\u2069")).toBe("Delete collection \u2068agnp\u2069?");
  expect(gallery.heading("plain", 1)).toBe("plain · 1 output");
});
