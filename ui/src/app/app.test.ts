import { describe, expect, it, vi } from "vitest";
import { filterable } from "@/api/queries";
import type { Batch, Job } from "@/api/types";
import { numberIn } from "@/kit/fields";
import { linesOf } from "@/kit/VirtualGrid";
import { gallery } from "@/texts/gallery";
import { keyboard } from "./keyboard";
import { lastSearch, remember } from "./last";
import { Ends } from "./notifications";
import { fitting, gallerySearch, listed, parseSearch, searchOf, unlisted, writeSearch } from "./search";
import { store, stored } from "./stored";

const press = (key: string, target: EventTarget = document.body, more: KeyboardEventInit = {}) => {
  const event = new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true, ...more });
  Object.defineProperty(event, "target", { value: target });
  keyboard.onKeyDown(event);
};
const action = (keys: string, run: () => void, whileTyping = false) => ({
  keys,
  run,
  whileTyping,
  name: keys,
  group: "",
});

describe("keys", () => {
  it("work one after the other, and the newest one wins", () => {
    const [old, queue, letter] = [vi.fn(), vi.fn(), vi.fn()];
    const remove = [
      keyboard.add(() => [action("q", old), action("g q", queue)]),
      keyboard.add(() => [action("q", letter)]),
    ];
    press("q");
    press("g");
    press("q");
    for (const each of remove) each();
    expect([old, queue, letter].map((each) => each.mock.calls.length)).toEqual([0, 1, 1]);
  });

  it("leave who types alone", () => {
    const [letter, palette] = [vi.fn(), vi.fn()];
    const remove = keyboard.add(() => [action("j", letter), action("mod+k", palette, true)]);
    const input = document.createElement("input");
    press("j", input);
    press("k", input, { ctrlKey: true });
    remove();
    expect([letter.mock.calls.length, palette.mock.calls.length]).toEqual([0, 1]);
  });

  it("are left to a dialog while one is open, also those that work while one types", () => {
    const [run, add, palette] = [vi.fn(), vi.fn(), vi.fn()];
    const remove = keyboard.add(() => [
      action("x", run),
      action("mod+Enter", add, true),
      { ...action("mod+k", palette, true), overDialogs: true },
    ]);
    document.body.innerHTML = "<div data-owns-keys></div>";
    press("x");
    press("Enter", document.createElement("input"), { ctrlKey: true });
    press("k", document.body, { ctrlKey: true });
    document.body.innerHTML = "";
    remove();
    expect([run, add, palette].map((each) => each.mock.calls.length)).toEqual([0, 0, 1]);
  });
});

describe("what a browser keeps", () => {
  it("is what was set last, also where there is no room", () => {
    store("size", "small");
    const refuse = () => {
      throw new DOMException("full", "QuotaExceededError");
    };
    vi.stubGlobal("localStorage", { getItem: () => "small", setItem: refuse });
    store("size", "large");
    expect(stored("size")).toBe("large");
    vi.unstubAllGlobals();
    store("size", "medium");
    expect([stored("size"), localStorage.getItem("comfyrelay.size")]).toEqual(["medium", "medium"]);
    store("size", null);
    expect(stored("size")).toBeNull();
  });
});

describe("names", () => {
  it("that are read from the right turn nothing around them", () => {
    expect(gallery.heading("שלום", 3)).toBe("\u2068שלום\u2069 · 3 outputs");
    // what turns a line on purpose does not get out of its place
    expect(gallery.collections.removeTitle("a\u202egnp\u2069")).toBe("Delete collection \u2068agnp\u2069?");
    expect(gallery.heading("plain", 1)).toBe("plain · 1 output");
  });
});

describe("what jobs are filtered by", () => {
  it("is every workflow of one's own and behind an effect, however many", () => {
    const own = Array.from({ length: 30 }, (_each, at) => ({ slug: `own-${at}`, name: `Own ${at}` }));
    const shared = [
      { workflow_slug: "wan", name: "Clip" },
      { workflow_slug: "wan", name: "Short clip" },
    ];
    const found = filterable(own, shared);
    expect(found).toHaveLength(31);
    expect(found.at(-1)).toEqual({ slug: "wan", name: "Clip, Short clip" });
  });
});

describe("the address", () => {
  it("has no list that is too long to be asked for", () => {
    const many = Array.from({ length: 101 }, (_each, at) => `id-${at}`).join(",");
    expect(fitting("a,b")).toEqual({ written: "a,b", kept: "" });
    expect(fitting(many)).toEqual({ written: "", kept: many });
  });

  it("has no day that there is not", () => {
    expect(gallerySearch({ day: "2026-02-28", q: "x" })).toEqual({ day: "2026-02-28", q: "x" });
    for (const day of ["2026-99-99", "2026-02-30", "yesterday"])
      expect(gallerySearch({ day, q: "x" })).toEqual({ q: "x" });
  });

  it("is plain text, without what is empty", () => {
    expect(writeSearch({ q: "123", status: "", sel: "a,b" })).toBe("?q=123&sel=a,b");
    expect(parseSearch("?q=123&sel=a,b")).toEqual({ q: "123", sel: "a,b" });
  });

  it("knows only its own words", () => {
    expect(searchOf("q")({ q: "a", other: "b" })).toEqual({ q: "a" });
  });

  it("writes lists with commas", () => {
    expect(listed(unlisted(["a", "b"]))).toEqual(["a", "b"]);
    expect(unlisted([])).toBeUndefined();
  });
});

describe("numbers that are typed", () => {
  it("keep every digit of a seed", () => expect(numberIn("18446744073709551615", true)).toBe(18446744073709551615n));
  it("may have a comma", () => expect(numberIn("7,5", false)).toBe(7.5));
  it("are none where they are none", () => expect([numberIn("a", true), numberIn("1.5", true)]).toEqual([null, null]));
});

describe("who asked for it is told", () => {
  const start = Date.parse("2026-03-05T10:00:00Z");
  const batch = (id: string, done: number) => ({ id, done, total: 2, counts: { completed: done } }) as unknown as Batch;
  const job = (id: string, status: string, more: object = {}) =>
    ({ id, status, batch_id: null, completed_at: "2026-03-05T11:00:00Z", ...more }) as unknown as Job;
  const endedIn = (ends: Ends, changed: Parameters<Ends["endedIn"]>[0]) => ends.endedIn(changed).map((each) => each.id);

  it("that a batch has ended, however many others there are: once, and again after a retry", () => {
    const ends = new Ends(start);
    const item = job("i", "completed", { batch_id: "a" });
    expect(endedIn(ends, { jobs: [item], batches: [batch("a", 1)] })).toEqual([]);
    expect(endedIn(ends, { jobs: [item], batches: [batch("a", 2)] })).toEqual(["a"]);
    expect(endedIn(ends, { jobs: [item], batches: [batch("a", 2)] })).toEqual([]);
    expect(endedIn(ends, { batches: [batch("a", 1)] })).toEqual([]);
    expect(endedIn(ends, { jobs: [item], batches: [batch("a", 2)] })).toEqual(["a"]);
  });

  it("that a job without a batch has ended, and not of what was canceled or ended before", () => {
    const ends = new Ends(start);
    const before = { completed_at: "2026-03-05T09:00:00Z" };
    const jobs = [job("a", "completed"), job("b", "failed"), job("c", "canceled"), job("d", "completed", before)];
    expect(endedIn(ends, { jobs })).toEqual(["a", "b"]);
    expect(endedIn(ends, { jobs: [job("e", "processing", { completed_at: null })] })).toEqual([]);
  });
});

it("an area is found as it was left, without what was selected or open in it", () => {
  remember("/queue", { q: "cat", sort: "newest", sel: "1,2", job: "1", batch: "2" });
  remember("/gallery", { batch: "2", open: "3" });
  remember("/create", { from: "1" });
  expect(["/queue", "/gallery", "/create"].map(lastSearch)).toEqual([{ q: "cat", sort: "newest" }, { batch: "2" }, {}]);
});

it("a grid breaks each section into rows, and counts its items through", () => {
  const lines = linesOf(
    [
      { key: "x", heading: "X", items: [1, 2, 3] },
      { key: "y", items: [4] },
    ],
    2,
  );
  expect(lines.map((each) => ("items" in each ? [each.first, ...each.items] : each.heading))).toEqual([
    "X",
    [0, 1, 2],
    [2, 3],
    [3, 4],
  ]);
});

it("a key that comes first is not heard by the list that has the focus", () => {
  const run = vi.fn();
  const remove = keyboard.add(() => [{ keys: "mod+Enter", name: "add", group: "x", isFirst: true, run }]);
  const list = document.body.appendChild(document.createElement("button"));
  const opened = vi.fn();
  list.addEventListener("keydown", opened);
  addEventListener("keydown", keyboard.onKeyDownCapture, true);
  list.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", ctrlKey: true, bubbles: true, cancelable: true }));
  expect([run.mock.calls.length, opened.mock.calls.length]).toEqual([1, 0]);
  list.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true }));
  expect([run.mock.calls.length, opened.mock.calls.length]).toEqual([1, 1]);
  removeEventListener("keydown", keyboard.onKeyDownCapture, true);
  list.remove();
  remove();
});
