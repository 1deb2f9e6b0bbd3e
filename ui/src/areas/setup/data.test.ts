import { QueryClient } from "@tanstack/react-query";
import { afterEach, expect, it, vi } from "vitest";
import { makeEffect, makeFleet, workers } from "./data";

afterEach(() => vi.unstubAllGlobals());

it("the first worker is one that can work", async () => {
  const items = ["offline", "revoked", "idle", "busy", "draining"].map((state) => ({ worker_id: state, state }));
  vi.stubGlobal("fetch", async () => new Response(JSON.stringify({ data: { items, next_cursor: null }, message: "" })));
  const found = await new QueryClient().fetchQuery(workers);
  expect(found.map((each) => each.worker_id)).toEqual(["idle", "busy", "draining"]);
});

/** A server on which this is there already, and which says so; what it was asked, in order. */
function serverWith(there: readonly string[]): string[] {
  const asked: string[] = [];
  vi.stubGlobal("fetch", async (path: string) => {
    asked.push(path);
    const isThere = there.includes(path);
    return new Response(JSON.stringify(isThere ? { detail: "There is one." } : { data: {} }), {
      status: isThere ? 409 : 201,
    });
  });
  return asked;
}

const CREDITS = "/api/admin/tenants/t1/credits";
const EFFECTS = "/api/admin/effects";

it("goes on after an answer that was lost, with what was made before", async () => {
  serverWith(["/api/admin/workflows", "/api/admin/fleets", EFFECTS, CREDITS]);
  await makeFleet("home", "production");
  await makeEffect("Invert", 5, "t1");
});

it("gives the tokens before there is an effect, which nobody who comes back would give", async () => {
  const asked = serverWith([]);
  await makeEffect("Invert", 5, "t1");
  expect(asked).toEqual([CREDITS, EFFECTS]);
});
