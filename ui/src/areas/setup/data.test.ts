import { QueryClient } from "@tanstack/react-query";
import { afterEach, expect, it, vi } from "vitest";
import { workers } from "./data";

afterEach(() => vi.unstubAllGlobals());

it("the first worker is one that can work", async () => {
  const items = ["offline", "revoked", "idle", "busy", "draining"].map((state) => ({ worker_id: state, state }));
  vi.stubGlobal("fetch", async () => new Response(JSON.stringify({ data: { items, next_cursor: null }, message: "" })));
  const found = await new QueryClient().fetchQuery(workers);
  expect(found.map((each) => each.worker_id)).toEqual(["idle", "busy", "draining"]);
});
