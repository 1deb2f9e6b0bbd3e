import { QueryObserver } from "@tanstack/react-query";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { Problem } from "./problem";
import { effects, entry, filterWorkflows, keys, makeQueryClient, renewUrls, workflows } from "./queries";

type Entry = NonNullable<Awaited<ReturnType<NonNullable<typeof entry.queryFn>>>>;

beforeEach(() => void vi.useFakeTimers());
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

function observeQuery(key: readonly string[]) {
  const client = makeQueryClient();
  client.setQueryData(entry.queryKey, { is_desk: false, url_seconds: 100 } as Entry);
  const queryFn = vi.fn(async () => ({ url: "signed" }));
  const stop = new QueryObserver(client, { queryKey: key, queryFn }).subscribe(() => undefined);
  return { client, queryFn, stop };
}

describe("file URLs", () => {
  it("are renewed before they expire, even if poster URLs are already half expired", async () => {
    const { queryFn, stop } = observeQuery(keys.job("a"));
    await vi.advanceTimersByTimeAsync(39_000);
    expect(queryFn).toHaveBeenCalledTimes(1);
    await vi.advanceTimersByTimeAsync(2000);
    expect(queryFn).toHaveBeenCalledTimes(2);
    await vi.advanceTimersByTimeAsync(41_000);
    expect(queryFn).toHaveBeenCalledTimes(3);
    stop();
  });

  it("keep their age when only the progress changes", async () => {
    const { client, queryFn, stop } = observeQuery(keys.job("a"));
    await vi.advanceTimersByTimeAsync(30_000);
    const updatedAt = client.getQueryState(keys.job("a"))?.dataUpdatedAt ?? 0;
    client.setQueryData(keys.job("a"), { url: "signed", progress: 1 }, { updatedAt });
    await vi.advanceTimersByTimeAsync(11_000);
    expect(queryFn).toHaveBeenCalledTimes(2);
    stop();
  });

  it("are requested again when one fails", async () => {
    const { client, queryFn, stop } = observeQuery(keys.job("a"));
    await vi.advanceTimersByTimeAsync(0);
    renewUrls(client);
    await vi.advanceTimersByTimeAsync(0);
    expect(queryFn).toHaveBeenCalledTimes(2);
    stop();
  });

  it("do not cause queries without URLs to be refetched", async () => {
    const { client, queryFn, stop } = observeQuery(keys.wallet);
    await vi.advanceTimersByTimeAsync(1_000_000);
    renewUrls(client);
    await vi.advanceTimersByTimeAsync(0);
    expect(queryFn).toHaveBeenCalledTimes(1);
    stop();
  });
});

it.each([0, 503])("a query that failed with status %i is repeated until the server is back", async (status) => {
  const client = makeQueryClient();
  let isDown = true;
  const queryFn = vi.fn(async () => {
    if (isDown) throw new Problem("Out of service", status);
    return "data";
  });
  const observer = new QueryObserver(client, { queryKey: keys.wallet, queryFn });
  const stop = observer.subscribe(() => undefined);
  await vi.advanceTimersByTimeAsync(60_000);
  expect(observer.getCurrentResult().isError).toBe(true);
  isDown = false;
  await vi.advanceTimersByTimeAsync(10_000);
  expect(observer.getCurrentResult().data).toBe("data");
  const calls = queryFn.mock.calls.length;
  await vi.advanceTimersByTimeAsync(60_000);
  expect(queryFn).toHaveBeenCalledTimes(calls);
  stop();
});

it.each([
  ["effects", effects],
  ["workflows", workflows],
])("all pages of %s are fetched", async (name, query) => {
  const pages: Record<string, unknown> = {
    [`/api/${name}?limit=200`]: { items: [{ name: "a" }], next_cursor: "1" },
    [`/api/${name}?limit=200&cursor=1`]: { items: [{ name: "b" }], next_cursor: null },
  };
  vi.stubGlobal("fetch", async (path: string) => new Response(JSON.stringify({ data: pages[path] })));
  const found = await makeQueryClient().fetchQuery<{ name: string }[]>(query as never);
  expect(found.map((each) => each.name)).toEqual(["a", "b"]);
});

it("jobs can be filtered by the workflows of the user and those behind effects", () => {
  const own = Array.from({ length: 30 }, (_each, at) => ({ slug: `own-${at}`, name: `Own ${at}` }));
  const shared = [
    { workflow_slug: "wan", name: "Clip" },
    { workflow_slug: "wan", name: "Short clip" },
  ];
  const found = filterWorkflows(own, shared);
  expect(found).toHaveLength(31);
  expect(found.at(-1)).toEqual({ slug: "wan", name: "Clip, Short clip" });
});
