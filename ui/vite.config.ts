import { fileURLToPath } from "node:url";
import react from "@vitejs/plugin-react";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";
import { notices } from "./notices";

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url));

const AREAS = ["create", "queue", "gallery", "job"];
/** Modules that most areas use. Tables, charts and players are loaded on demand. */
const SHARED =
  /node_modules\/(?!.*(uplot|table))|\/src\/(api|app|lib|live|session|texts\/common)|\/src\/kit\/(?!Table|Sparkline|Player|Compare)/;
const BASE =
  /\/src\/(live|session\/renewal)|\/src\/kit\/(ErrorCard|Segmented|Switch|undoable-delete)|@tanstack\/react-router\//;
const JOBS =
  /\/src\/(jobs(?!\/use-queue-pause)|folders)\/|\/src\/kit\/(Player|CompareSlider|Inspector|Poster|SelectionTray|Status|VirtualList)/;
const LINK = /^ *<link rel="(stylesheet|modulepreload)"[^>]*>\n/gm;
const MAIN = /^ *<script type="module"[^>]*><\/script>\n/m;

/** Writes a page for each area that preloads all its chunks, so that they are fetched in parallel. Stylesheets are
 * linked at the end of the page: the first paint does not wait for them, but scripts do. */
const pages = (): Plugin => ({
  name: "pages",
  apply: "build",
  enforce: "post",
  generateBundle: {
    order: "post",
    handler(_options, bundle) {
      const index = bundle["index.html"];
      if (index?.type !== "asset") throw new Error("The build has no index.html");
      const html = String(index.source);
      const chunks = Object.values(bundle).filter((each) => each.type === "chunk");
      const [first] = html.match(MAIN) ?? [];
      const [nonce] = html.match(/ nonce="[^"]*"/) ?? [];
      if (!first || !nonce) throw new Error("index.html has no script, or no nonce");
      const write = (links: string[]) => {
        const has = (rel: string) => links.filter((each) => each.includes(`rel="${rel}"`)).join("");
        return html
          .replace(LINK, "")
          .replace(MAIN, () => first + has("modulepreload"))
          .replace("    <noscript>", (found) => has("stylesheet") + found);
      };
      const link = (rel: string, name: string) => `    <link rel="${rel}" crossorigin href="/${name}"${nonce}>\n`;
      const linksOf = (module: string) => {
        const scripts = new Set<string>();
        const styles = new Set<string>();
        const collect = (name: string) => {
          const chunk = chunks.find((each) => each.fileName === name);
          if (!chunk || scripts.has(name)) return;
          scripts.add(name);
          for (const each of chunk.imports) collect(each);
          for (const each of chunk.viteMetadata?.importedCss ?? []) styles.add(each);
        };
        const found = chunks.find((each) => each.facadeModuleId === here(module));
        if (!found) throw new Error(`The build has no chunk for ${module}`);
        collect(found.fileName);
        return [
          ...[...scripts].map((each) => link("modulepreload", each)),
          ...[...styles].map((each) => link("stylesheet", each)),
        ].filter((each) => !first.includes(each.match(/"\/[^"]*"/)?.[0] ?? each));
      };
      const common = linksOf("./src/main.tsx");
      for (const area of AREAS) {
        const source = write([...new Set([...common, ...linksOf(`./src/areas/${area}/index.tsx`)])]);
        this.emitFile({ type: "asset", fileName: `${area}.html`, source });
      }
      index.source = write(common);
    },
  },
});

export default defineConfig({
  base: "/",
  plugins: [react(), pages(), notices()],
  resolve: { alias: { "@": here("./src") } },
  // the server replaces this placeholder with a new nonce in each response
  html: { cspNonce: "__NONCE__" },
  build: {
    outDir: here("../src/comfyrelay/web/app"),
    emptyOutDir: true,
    target: "es2022",
    // the content security policy forbids data: URLs
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    rolldownOptions: {
      output: {
        codeSplitting: {
          groups: [
            // one chunk: a single icon is too small for a request
            { name: "icons", test: /lucide-react/ },
            // one chunk for modules that at least eight others share: fewer requests, without a larger first script
            { name: "shared", test: SHARED, minShareCount: 8 },
            // modules of the first script that the pages of jobs share with it
            { name: "base", test: BASE },
            // one chunk for the pages of jobs: otherwise they have dozens of chunks of less than 1 KB
            { name: "jobs", test: JOBS, minShareCount: 2 },
          ],
        },
      },
    },
  },
  test: {
    environment: "happy-dom",
    include: ["*.test.ts", "src/**/*.test.{ts,tsx}"],
    css: false,
    setupFiles: ["src/testing.ts"],
  },
});
