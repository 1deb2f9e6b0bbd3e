import { expect, it } from "vitest";
import { isPromptFile, promptsIn, readPrompts } from "./prompt-files";

it("reads one prompt per line", () => {
  expect(promptsIn("a fox\r\n\n  a heron \n")).toEqual(["a fox", "a heron"]);
});

it("reads blocks between separators as one prompt each", () => {
  expect(promptsIn("a fox\nin snow\n---\na heron\n---\n")).toEqual(["a fox in snow", "a heron"]);
});

it("reads UTF-8 and UTF-16 with a byte order mark, and no other files", async () => {
  expect(await readPrompts(new File(["\ufeffa fox"], "p.txt"))).toEqual(["a fox"]);
  expect(await readPrompts(new File([new Uint8Array([0xff, 0xfe, 0x61, 0, 0x0a, 0, 0x62, 0])], "p.txt"))).toEqual([
    "a",
    "b",
  ]);
  expect(await readPrompts(new File([new Uint8Array([0x61, 0xff, 0x62])], "p.txt"))).toBeNull();
  expect(await readPrompts(new File(["a\u0000b"], "p.txt"))).toBeNull();
});

it("recognizes prompt files by name and type", () => {
  expect(isPromptFile(new File([""], "P.TXT", { type: "text/plain" }))).toBe(true);
  expect(isPromptFile(new File([""], "p.md", { type: "text/markdown" }))).toBe(false);
});
