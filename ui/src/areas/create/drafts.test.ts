import { expect, test, vi } from "vitest";
import { Problem, problemOf } from "@/api/problem";
import { describeUploadError } from "@/api/uploads";
import {
  addFiles,
  changeDraft,
  type Draft,
  draftOf,
  EMPTY,
  parseDraft,
  replaceDraft,
  serializeDraft,
  withOnlyInput,
} from "./drafts";
import { validateDraft } from "./form";
import { batchRequest } from "./submission";
import { jobCount, sweepOf } from "./sweep";
import { choice, draft, file } from "./test-fixtures";

test("restores a stored draft without unfinished uploads", () => {
  const left = draft({ texts: { steps: "many" }, tries: "x" });
  const sending = { ...left, files: { image: [file("a.png"), { ...file("b.png"), id: null }] } };
  const back = parseDraft(serializeDraft(sending));
  expect(back.texts).toEqual({ steps: "many" });
  expect(back.tries).toBe("x");
  expect(back.files.image?.map((each) => each.name)).toEqual(["a.png"]);
  expect(parseDraft("{broken")).toEqual(EMPTY);
  expect(parseDraft('{"other": 1}')).toEqual(EMPTY);
});

test("lists a deleted stored file until the user chooses it again", async () => {
  const stored = JSON.stringify({ files: { image: [{ id: "f1", name: "fox.png", mime: "image/png" }] } });
  sessionStorage.setItem("comfyrelay.create.draft.gone", stored);
  vi.stubGlobal("fetch", () => Promise.resolve(new Response('{"message": "Not found."}', { status: 404 })));
  draftOf("gone");
  await vi.waitFor(() => expect(draftOf("gone").files.image?.[0]?.isGone).toBe(true));
  expect(validateDraft(choice, draftOf("gone")).image).toContain("“fox.png” was deleted");
  // also after a reload
  expect(parseDraft(serializeDraft(draftOf("gone"))).files.image).toMatchObject([{ name: "fox.png", isGone: true }]);
  addFiles("gone", "image", [new File(["x"], "fox.png", { type: "image/png" })], { isOne: false });
  expect(draftOf("gone").files.image?.map((each) => each.isGone ?? false)).toEqual([false]);
  vi.unstubAllGlobals();
});

test("returns an undo when a non-empty draft is replaced", () => {
  expect(replaceDraft("painter", draft())).toBeNull();
  changeDraft("painter", (before) => ({ ...before, texts: { prompt: "an hour of work" } }));
  const undo = replaceDraft("painter", EMPTY);
  expect(draftOf("painter").texts).toEqual({});
  undo?.();
  expect(draftOf("painter").texts).toEqual({ prompt: "an hour of work" });
});

test("replaces all inputs when an output is used as input", () => {
  const before: Draft = { ...EMPTY, folder: "mine", tries: "3", files: { image: [file("old.png")] }, label: "kept" };
  const next = withOnlyInput(before, "image", file("made.png"));
  expect(jobCount(sweepOf(choice, next))).toBe(1);
  expect(batchRequest(choice, next)).toMatchObject({ input_file_ids: ["id-made.png"], label: "kept" });
  expect(batchRequest(choice, next)).not.toHaveProperty("input_subdir");
});

test("keeps a separate draft per tab", () => {
  changeDraft("tabs", () => ({ ...EMPTY, label: "mine" }));
  localStorage.setItem("comfyrelay.create.draft.tabs", serializeDraft({ ...EMPTY, label: "theirs" }));
  expect(parseDraft(sessionStorage.getItem("comfyrelay.create.draft.tabs")).label).toBe("mine");
});

test("names a file that is too large, with its size and the limit", () => {
  const refused = new Problem("The file is too large: at most 2147483648 bytes are allowed.", 413);
  const told = describeUploadError({ name: "huge.png", size: 6e9 }, refused) as Problem;
  expect(told.message).toBe("huge.png is 6.0 GB; the limit is 2.1 GB.");
});

test("gives the reason for a refused file without the name of the API field", () => {
  const refused = problemOf({ title: "The input is invalid.", errors: { size: "This file is empty." } }, 422);
  const told = describeUploadError({ name: "fox.png", size: 0 }, refused) as Problem;
  expect(told.message).toBe("fox.png cannot be used: This file is empty.");
});
