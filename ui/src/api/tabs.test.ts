import { QueryClient } from "@tanstack/react-query";
import { afterEach, expect, test, vi } from "vitest";
import { broadcastChange, changedBy, followTabs, onTabChange } from "./tabs";

/** As another tab has it. */
const other = new BroadcastChannel("comfyrelay.changes");
const nextMessage = () =>
  new Promise<unknown>((resolve) => other.addEventListener("message", ({ data }) => resolve(data)));

afterEach(() => vi.restoreAllMocks());

test("other tabs hear what was marked, kept or added, and nothing of what is told by the stream", async () => {
  const sent = nextMessage();
  broadcastChange("/api/ai-jobs", { idempotency_key: "k" });
  broadcastChange("/api/gallery/zip", { ids: ["a"] });
  broadcastChange("/api/gallery/marks", { ids: ["a", "b"], starred: true });
  expect(await sent).toEqual({ words: ["gallery", "gallery-index", "collections"], outputs: ["a", "b"] });
  expect(changedBy("/api/presets/7", undefined)?.words).toEqual(["presets"]);
  expect(changedBy("/api/workflows/mine", { name: "x" })?.words).toContain("workflows");
  expect(changedBy("/api/collections", { name: "x" })?.words).toContain("collections");
});

test("what another tab has changed is fetched anew", async () => {
  const client = new QueryClient();
  client.setQueryData(["presets"], []);
  client.setQueryData(["workflows"], []);
  const stop = followTabs(client);
  const arrived = new Promise((resolve) => onTabChange(resolve));
  other.postMessage(changedBy("/api/presets", {}));
  await arrived;
  expect(["presets", "workflows"].map((each) => client.getQueryState([each])?.isInvalidated)).toEqual([true, false]);
  stop();
});
