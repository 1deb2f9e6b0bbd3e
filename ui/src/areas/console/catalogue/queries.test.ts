import { QueryClient } from "@tanstack/react-query";
import { afterEach, expect, it, vi } from "vitest";
import { fitting } from "./queries";

afterEach(() => vi.unstubAllGlobals());

it("fetches the availability on all pages of workers", async () => {
  const asked: string[] = [];
  const answer = (workers: object) => new Response(JSON.stringify({ data: { text: "some", workers }, message: "" }));
  vi.stubGlobal("fetch", async (input: RequestInfo | URL) => {
    const url = new URL(input instanceof Request ? input.url : String(input), "http://server");
    asked.push(url.searchParams.get("cursor") ?? "");
    return asked.length === 1
      ? answer({ items: [{ worker_id: "gpu 1/a" }], next_cursor: "gpu 1/a" })
      : answer({ items: [{ worker_id: "gpu-2" }], next_cursor: null });
  });
  const { text, workers } = await new QueryClient().fetchQuery(fitting("portrait"));
  expect(workers.items.map((each) => each.worker_id)).toEqual(["gpu 1/a", "gpu-2"]);
  expect([text, asked]).toEqual(["some", ["", "gpu 1/a"]]);
});
