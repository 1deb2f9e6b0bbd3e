import { QueryClient } from "@tanstack/react-query";
import { afterEach, expect, test, vi } from "vitest";
import { index, newest } from "@/areas/gallery/data";
import { firstAsked } from "./early";
import { counts, effects, me, queue, workflows } from "./queries";

afterEach(() => vi.unstubAllGlobals());

const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
const always = [me, counts];
const areas = {
  "/": [queue()],
  "/queue": [queue()],
  "/gallery": [index({}), newest({})],
  "/create": [workflows, effects],
};

test.each(Object.entries(areas))("what %s asks for first is asked for by the same addresses", async (path, own) => {
  const asked: string[] = [];
  vi.stubGlobal("fetch", (address: string) => {
    asked.push(address);
    return Promise.resolve(new Response('{"data": {"counts": {}, "items": []}}'));
  });
  const client = new QueryClient({ defaultOptions: { queries: { retry: false } } });
  for (const each of [...always, ...own]) {
    if ("initialPageParam" in each) await client.fetchInfiniteQuery(each as ReturnType<typeof queue>);
    else await client.fetchQuery(each as typeof me);
  }
  expect(firstAsked(path, "", zone)).toEqual(asked);
});

test("an address with words in it asks for what is the same for all", () => {
  expect(firstAsked("/queue", "?status=failed", zone)).toEqual(["/api/me", "/api/queue/counts"]);
});

test("who is about to come in asks for nothing", () => {
  expect(firstAsked("/sign-in", "", zone)).toEqual([]);
  expect(firstAsked("/setup/first", "", zone)).toEqual([]);
});
