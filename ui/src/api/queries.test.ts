import { QueryObserver } from "@tanstack/react-query";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { effects, entry, keys, makeQueryClient, renewUrls } from "./queries";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

function observing(key: readonly string[]) {
  const client = makeQueryClient();
  client.setQueryData(entry.queryKey, { url_seconds: 100 } as never);
  const queryFn = vi.fn(async () => ({ url: "signed" }));
  const stop = new QueryObserver(client, { queryKey: key, queryFn }).subscribe(() => undefined);
  return { client, queryFn, stop };
}

describe("URLs of files", () => {
  it("are renewed before they, and posters at half of their time, work no longer", async () => {
    const { queryFn, stop } = observing(keys.job("a"));
    await vi.advanceTimersByTimeAsync(39_000);
    expect(queryFn).toHaveBeenCalledTimes(1);
    await vi.advanceTimersByTimeAsync(2000);
    expect(queryFn).toHaveBeenCalledTimes(2);
    await vi.advanceTimersByTimeAsync(41_000);
    expect(queryFn).toHaveBeenCalledTimes(3);
    stop();
  });

  it("are as old as they were where only progress was told", async () => {
    const { client, queryFn, stop } = observing(keys.job("a"));
    await vi.advanceTimersByTimeAsync(30_000);
    const updatedAt = client.getQueryState(keys.job("a"))?.dataUpdatedAt ?? 0;
    client.setQueryData(keys.job("a"), { url: "signed", progress: 1 }, { updatedAt });
    await vi.advanceTimersByTimeAsync(11_000);
    expect(queryFn).toHaveBeenCalledTimes(2);
    stop();
  });

  it("are asked for where one works no longer", async () => {
    const { client, queryFn, stop } = observing(keys.job("a"));
    await vi.advanceTimersByTimeAsync(0);
    renewUrls(client);
    await vi.advanceTimersByTimeAsync(0);
    expect(queryFn).toHaveBeenCalledTimes(2);
    stop();
  });

  it("are nothing that others are fetched for", async () => {
    const { client, queryFn, stop } = observing(keys.wallet);
    await vi.advanceTimersByTimeAsync(1_000_000);
    renewUrls(client);
    await vi.advanceTimersByTimeAsync(0);
    expect(queryFn).toHaveBeenCalledTimes(1);
    stop();
  });
});

describe("effects", () => {
  it("are all there, however many pages they are", async () => {
    const pages: Record<string, unknown> = {
      "/api/effects?limit=200": { items: [{ id: 1 }], next_cursor: "1" },
      "/api/effects?limit=200&cursor=1": { items: [{ id: 2 }], next_cursor: null },
    };
    vi.stubGlobal("fetch", async (path: string) => new Response(JSON.stringify({ data: pages[path] })));
    const found = await makeQueryClient().fetchQuery(effects);
    expect(found.map((each) => each.id)).toEqual([1, 2]);
  });
});
