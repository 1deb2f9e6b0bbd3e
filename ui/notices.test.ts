import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { readPackage, writeNotices } from "./notices";

let folder: string;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "notices-"));
});

afterEach(() => rmSync(folder, { recursive: true }));

function describePackage(more: object) {
  writeFileSync(join(folder, "package.json"), JSON.stringify({ name: "demo", version: "1.0.0", ...more }));
}

test("a package is listed with its license text", () => {
  describePackage({ license: "ISC" });
  writeFileSync(join(folder, "LICENSE.md"), "Copyright Ada\n");
  expect(writeNotices([readPackage(folder)])).toContain("demo 1.0.0 (ISC)\n\nCopyright Ada\n");
});

test("a package that only names the MIT license gets its text, with the author", () => {
  describePackage({ license: "MIT", author: { name: "Ada" } });
  expect(readPackage(folder).text).toContain("Copyright (c) Ada");
});

test("a package without a license text stops the build", () => {
  describePackage({ license: "ISC", author: "Ada" });
  expect(() => readPackage(folder)).toThrow("demo 1.0.0 has no license text");
});
