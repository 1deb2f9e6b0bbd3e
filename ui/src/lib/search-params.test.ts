import { describe, expect, it } from "vitest";
import {
  fitInUrl,
  gallerySearchFields,
  joinList,
  parseSearch,
  searchFields,
  splitList,
  stringifySearch,
} from "./search-params";

describe("search parameters", () => {
  it("are plain text without empty values", () => {
    expect(stringifySearch({ q: "123", status: "", sel: "a,b" })).toBe("?q=123&sel=a,b");
    expect(parseSearch("?q=123&sel=a,b")).toEqual({ q: "123", sel: "a,b" });
  });

  it("are limited to those of the route", () => {
    expect(searchFields("q")({ q: "a", other: "b" })).toEqual({ q: "a" });
  });

  it("hold lists with commas", () => {
    expect(splitList(joinList(["a", "b"]))).toEqual(["a", "b"]);
    expect(joinList([])).toBeUndefined();
  });

  it("hold only lists that are short enough for a URL", () => {
    const long = Array.from({ length: 101 }, (_each, at) => `id-${at}`).join(",");
    expect(fitInUrl("a,b")).toEqual({ url: "a,b", state: "" });
    expect(fitInUrl(long)).toEqual({ url: "", state: long });
  });

  it("drop a day that does not exist", () => {
    expect(gallerySearchFields({ day: "2026-02-28", q: "x" })).toEqual({ day: "2026-02-28", q: "x" });
    for (const day of ["2026-99-99", "2026-02-30", "yesterday"]) {
      expect(gallerySearchFields({ day, q: "x" })).toEqual({ q: "x" });
    }
  });
});
