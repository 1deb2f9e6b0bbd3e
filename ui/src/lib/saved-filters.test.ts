import { expect, it } from "vitest";
import { savedFilters, saveFilters } from "./saved-filters";

it("filters of the queue and the gallery are restored, without the selection and the open entry", () => {
  saveFilters("/queue", { q: "cat", sort: "newest", sel: "1,2", job: "1", batch: "2" });
  saveFilters("/gallery", { batch: "2", open: "3" });
  saveFilters("/create", { from: "1" });
  expect(["/queue", "/gallery", "/create"].map(savedFilters)).toEqual([
    { q: "cat", sort: "newest" },
    { batch: "2" },
    {},
  ]);
});
