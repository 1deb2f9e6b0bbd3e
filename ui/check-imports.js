// Fails if folders of src import each other in a circle. A folder of src/areas counts as its own folder.

import { readdirSync, readFileSync } from "node:fs";
import { join, posix } from "node:path";

const SRC = join(import.meta.dirname, "src");
const IMPORT = /(?:from|import)\s*\(?\s*"((?:@\/|\.)[^"]+)"/g;

const folderOf = (path) =>
  path
    .split("/")
    .slice(0, path.startsWith("areas/") ? 2 : 1)
    .join("/");

/** For each folder, the folders that it imports, with a file that does so. */
function readGraph() {
  const graph = new Map();
  const paths = readdirSync(SRC, { recursive: true }).map((each) => each.replaceAll("\\", "/"));
  for (const path of paths.filter((each) => /\/.*\.tsx?$/.test(each))) {
    for (const [, specifier] of readFileSync(join(SRC, path), "utf8").matchAll(IMPORT)) {
      const target = specifier.startsWith("@/") ? specifier.slice(2) : posix.join(posix.dirname(path), specifier);
      const [from, to] = [folderOf(path), folderOf(target)];
      if (from === to) continue;
      if (!graph.has(from)) graph.set(from, new Map());
      graph.get(from).set(to, path);
    }
  }
  return graph;
}

function findCycle(graph, folder, trail, done) {
  if (trail.includes(folder)) return [...trail.slice(trail.indexOf(folder)), folder];
  if (done.has(folder)) return null;
  for (const next of graph.get(folder)?.keys() ?? []) {
    const cycle = findCycle(graph, next, [...trail, folder], done);
    if (cycle) return cycle;
  }
  done.add(folder);
  return null;
}

const graph = readGraph();
const done = new Set();
for (const folder of graph.keys()) {
  const cycle = findCycle(graph, folder, [], done);
  if (!cycle) continue;
  console.error(`Folders import each other in a circle: ${cycle.join(" -> ")}`);
  for (const [at, to] of cycle.entries())
    if (at > 0) console.error(`  ${graph.get(cycle[at - 1]).get(to)} imports ${to}`);
  process.exit(1);
}
