import { QueryClient } from "@tanstack/react-query";
import { afterEach, expect, test, vi } from "vitest";
import { broadcastChange, changeOf, onTabChange, subscribeToTabs } from "./tabs";

/** The channel of another tab. */
const other = new BroadcastChannel("comfyrelay.changes");
const nextMessage = () =>
  new Promise<unknown>((resolve) => other.addEventListener("message", ({ data }) => resolve(data)));

afterEach(() => vi.restoreAllMocks());

test("marks, presets and workflows are broadcast to other tabs; jobs are not", async () => {
  const sent = nextMessage();
  broadcastChange("/api/ai-jobs", { idempotency_key: "k" });
  broadcastChange("/api/gallery/zip", { ids: ["a"] });
  broadcastChange("/api/gallery/marks", { ids: ["a", "b"], starred: true });
  expect(await sent).toEqual({ keys: ["gallery", "gallery-index", "collections"], outputs: ["a", "b"] });
  expect(changeOf("/api/presets/7", undefined)?.keys).toEqual(["presets"]);
  expect(changeOf("/api/workflows/mine", { name: "x" })?.keys).toContain("workflows");
  expect(changeOf("/api/collections", { name: "x" })?.keys).toContain("collections");
});

test("queries that another tab changed are refetched", async () => {
  const client = new QueryClient();
  client.setQueryData(["presets"], []);
  client.setQueryData(["workflows"], []);
  const stop = subscribeToTabs(client);
  const arrived = new Promise((resolve) => onTabChange(resolve));
  other.postMessage(changeOf("/api/presets", {}));
  await arrived;
  expect(["presets", "workflows"].map((each) => client.getQueryState([each])?.isInvalidated)).toEqual([true, false]);
  stop();
});
