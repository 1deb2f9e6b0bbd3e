import { expect, test } from "vitest";
import { EMPTY } from "./drafts";
import { fieldsChangedBy, missingFileInput, validateDraft } from "./form";
import { folderProblemIn } from "./submission";
import { jobCount, sweepOf } from "./sweep";
import { choice, draft, file } from "./test-fixtures";

test("rejects pairs with different numbers of files and prompts", () => {
  const two = draft({ texts: { prompt: "a storm\na calm" }, isPairwise: true });
  expect(jobCount(sweepOf(choice, two))).toBe(2);
  expect(validateDraft(choice, two)).toEqual({});
  const three = draft({ texts: { prompt: "a\nb\nc" }, isPairwise: true });
  expect(validateDraft(choice, three).prompt).toContain("2 files and 3 prompts");
});

test("requires a file unless a folder is given", () => {
  expect(missingFileInput(choice, EMPTY)?.key).toBe("image");
  expect(missingFileInput(choice, { ...EMPTY, files: { image: [{ ...file("a.png"), problem: "no" }] } })?.key).toBe(
    "image",
  );
  expect(missingFileInput(choice, { ...EMPTY, files: { image: [file("a.png")] } })).toBeUndefined();
  expect(missingFileInput(choice, { ...EMPTY, folder: "" })).toBeUndefined();
});

test("clears folder problems when the folder changes", () => {
  expect(fieldsChangedBy(choice, { folder: "mine" })).toContain("image");
  expect(fieldsChangedBy(choice, { label: "a" })).not.toContain("image");
  expect(folderProblemIn({ errors: { input_subdir: "It cannot be read." } })).toBe("It cannot be read.");
});
