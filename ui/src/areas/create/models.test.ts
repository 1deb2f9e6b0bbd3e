import { beforeEach, describe, expect, it } from "vitest";
import { matches } from "./ModelDialog";
import { addWord, groupByFolder, hasWord, isModel, pictureUrl, recentModels, rememberModel } from "./models";
import { choice, input, named } from "./test-fixtures";

beforeEach(() => localStorage.clear());

describe("a field that names models", () => {
  it("is known by its role or its choices", () => {
    expect(isModel(named("model"))).toBe(true);
    expect(isModel(input("ipadapter", "choice", { choices: ["none", "sub/face.GGUF"] }))).toBe(true);
    expect(isModel(input("ckpt", "text", { role: "model" }))).toBe(true);
    expect(isModel(named("sampler"))).toBe(false);
    expect(isModel(named("prompt"))).toBe(false);
  });

  it("requests pictures only for its own form", () => {
    expect(pictureUrl(choice, "model", "a b&c.pt")).toBe(
      "/api/desk/models/picture?workflow_slug=painter&field=model&name=a+b%26c.pt",
    );
    expect(pictureUrl({ ...choice, kind: "effect" }, "model", "a.pt")).toContain("effect_slug=painter");
  });
});

it("groups models by folder, including Windows paths", () => {
  expect(groupByFolder(["sdxl/b.pt", "a.pt", "sdxl\\c.pt", "people/x/d.pt"])).toEqual([
    { folder: "", names: ["a.pt"] },
    { folder: "people/x", names: ["people/x/d.pt"] },
    { folder: "sdxl", names: ["sdxl/b.pt", "sdxl\\c.pt"] },
  ]);
});

it("finds a model by words in any order", () => {
  expect(matches("", "anna PEOPLE", ["people/anna.safetensors"])).toBe(1);
  expect(matches("", "anna ink", ["people/anna.safetensors"])).toBe(0);
});

describe("recently used models", () => {
  it("are kept per field, newest first and without repetition", () => {
    for (const name of ["a", "b", "a"]) rememberModel("painter", "model", name);
    expect(recentModels("painter", "model", ["a", "b"])).toEqual(["a", "b"]);
    expect(recentModels("painter", "lora", ["a", "b"])).toEqual([]);
    expect(recentModels("painter", "model", ["b"])).toEqual(["b"]);
  });

  it("are at most eight", () => {
    const names = Array.from({ length: 20 }, (_none, index) => `model-${index}`);
    for (const name of names) rememberModel("painter", "model", name);
    expect(recentModels("painter", "model", names)).toHaveLength(8);
  });

  it("survive a broken storage entry", () => {
    localStorage.setItem("comfyrelay.create.models.painter.model", "{broken");
    expect(recentModels("painter", "model", ["a"])).toEqual([]);
    rememberModel("painter", "model", "a");
    expect(recentModels("painter", "model", ["a"])).toEqual(["a"]);
  });
});

describe("a trigger word", () => {
  it("is added once, after a comma", () => {
    expect(addWord("", "ohwx", false)).toBe("ohwx");
    expect(addWord("a lake, ", "ohwx", false)).toBe("a lake, ohwx");
    expect(addWord("OHWX man", "ohwx", false)).toBe("OHWX man");
  });

  it("is added to each prompt of a list", () => {
    expect(addWord("a lake\n\nohwx by a hill\n", "ohwx", true)).toBe("a lake, ohwx\n\nohwx by a hill\n");
  });

  it("is not found within a longer word", () => {
    expect(hasWord("a party", "art")).toBe(false);
    expect(hasWord("(art:1.2)", "art")).toBe(true);
    expect(hasWord("smile :) now", ":)")).toBe(true);
  });
});
