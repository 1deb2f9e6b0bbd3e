import { QueryClient } from "@tanstack/react-query";
import { afterEach, expect, it, vi } from "vitest";
import { createEffect, createFleet } from "./create";
import { workers } from "./queries";

afterEach(() => vi.unstubAllGlobals());

it("offline and revoked workers do not count as the first worker", async () => {
  const items = ["offline", "revoked", "idle", "busy", "draining"].map((state) => ({ worker_id: state, state }));
  vi.stubGlobal("fetch", async () => new Response(JSON.stringify({ data: { items, next_cursor: null }, message: "" })));
  const found = await new QueryClient().fetchQuery(workers);
  expect(found.map((each) => each.worker_id)).toEqual(["idle", "busy", "draining"]);
});

/** Stubs a server on which these already exist. Returns the requests, in order. */
function serverWith(existing: readonly string[]): string[] {
  const requests: string[] = [];
  vi.stubGlobal("fetch", async (path: string) => {
    requests.push(path);
    const exists = existing.includes(path);
    return new Response(JSON.stringify(exists ? { detail: "There is one." } : { data: {} }), {
      status: exists ? 409 : 201,
    });
  });
  return requests;
}

const CREDITS = "/api/admin/tenants/t1/credits";
const EFFECTS = "/api/admin/effects";

it("existing fleets and effects are not an error", async () => {
  serverWith(["/api/admin/workflows", "/api/admin/fleets", EFFECTS, CREDITS]);
  await createFleet("home", "production");
  await createEffect("Invert", 5, "t1");
});

it("tokens are granted before the effect is created, because the effect completes the step", async () => {
  const requests = serverWith([]);
  await createEffect("Invert", 5, "t1");
  expect(requests).toEqual([CREDITS, EFFECTS]);
});
