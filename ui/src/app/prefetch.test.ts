import { QueryClient } from "@tanstack/react-query";
import { afterEach, expect, test, vi } from "vitest";
import { prefetchPaths } from "@/api/prefetch";
import { counts, effects, entry, me, queue, workflows } from "@/api/queries";
import { index, newest } from "@/areas/gallery/queries";

afterEach(() => vi.unstubAllGlobals());

const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
const always = [me, entry, counts];
const areas = {
  "/": [queue()],
  "/queue": [queue()],
  "/gallery": [index({}), newest({})],
  "/create": [workflows, effects],
};

test.each(Object.entries(areas))("%s prefetches exactly the requests that its page sends first", async (path, own) => {
  const requested: string[] = [];
  vi.stubGlobal("fetch", (address: string) => {
    requested.push(address);
    return Promise.resolve(new Response('{"data": {"counts": {}, "items": []}}'));
  });
  const client = new QueryClient({ defaultOptions: { queries: { retry: false } } });
  for (const each of [...always, ...own]) {
    if ("initialPageParam" in each) await client.fetchInfiniteQuery(each as ReturnType<typeof queue>);
    else await client.fetchQuery(each as typeof me);
  }
  expect(prefetchPaths(path, "", zone)).toEqual(requested);
});

test("a URL with search parameters prefetches only the requests that all pages need", () => {
  expect(prefetchPaths("/queue", "?status=failed", zone)).toEqual(["/api/me", "/api/entry", "/api/queue/counts"]);
});

test("public pages prefetch nothing", () => {
  expect(prefetchPaths("/sign-in", "", zone)).toEqual([]);
  expect(prefetchPaths("/setup/first", "", zone)).toEqual([]);
});
