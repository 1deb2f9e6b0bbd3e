import { existsSync, readdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import type { Plugin } from "vite";

interface BundledPackage {
  name: string;
  version: string;
  license: string;
  text: string;
}

const LICENSE_FILE = /^(licen[cs]e|copying)(\.(md|txt))?$/i;
const RULE = "-".repeat(80);

/** Fails if a package has no license: the wheel must not contain it. */
export function readPackage(folder: string): BundledPackage {
  const { name, version, license, author } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const file = readdirSync(folder).find((each) => LICENSE_FILE.test(each));
  const text = file ? readFileSync(join(folder, file), "utf8").trim() : license === "MIT" && author && mit(author);
  if (!license || !text) throw new Error(`${name} ${version} has no license text, so it cannot be bundled.`);
  return { name, version, license, text };
}

/** A few packages name their license and author without the text. */
function mit(author: string | { name: string }): string {
  return `MIT License

Copyright (c) ${typeof author === "string" ? author : author.name}

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.`;
}

/** The folder of the package that a bundled file comes from. */
function packageOf(file: string): string | undefined {
  for (let folder = dirname(file); folder.includes("node_modules"); folder = dirname(folder)) {
    const path = join(folder, "package.json");
    // packages may contain further package.json files, without a name
    if (existsSync(path) && JSON.parse(readFileSync(path, "utf8")).version) return folder;
  }
  return undefined;
}

export function writeNotices(packages: readonly BundledPackage[]): string {
  const parts = packages.map(({ name, version, license, text }) => `${name} ${version} (${license})\n\n${text}\n`);
  return [
    "The web app of ComfyRelay contains these packages, each under its own license. ComfyRelay itself is licensed under\n" +
      "the Apache License 2.0.\n",
    ...parts,
  ].join(`\n${RULE}\n\n`);
}

/** Writes the licenses of all bundled packages and fonts: a text for users, and a list for the SBOM. */
export const notices = (): Plugin => ({
  name: "notices",
  apply: "build",
  generateBundle(_options, bundle) {
    const files = Object.values(bundle).flatMap((each) =>
      each.type === "chunk" ? each.moduleIds : each.originalFileNames.map((name) => join(import.meta.dirname, name)),
    );
    const folders = files
      .map((file) => file.replace(/^\0/, ""))
      .filter((file) => file.includes("node_modules"))
      .map(packageOf);
    const found = [...new Set(folders)].filter((each) => each !== undefined).map(readPackage);
    const packages = [...new Map(found.map((each) => [`${each.name} ${each.version}`, each])).entries()]
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .map(([, each]) => each);
    const list = packages.map(({ name, version, license }) => ({ name, version, license }));
    this.emitFile({ type: "asset", fileName: "licenses.txt", source: writeNotices(packages) });
    this.emitFile({ type: "asset", fileName: "packages.json", source: `${JSON.stringify(list, null, 1)}\n` });
  },
});
