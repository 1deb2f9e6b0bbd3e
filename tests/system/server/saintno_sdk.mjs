// Calls of @saintno/comfyui-sdk, as its documentation shows them. Prints, as JSON, what each one found: null, or why it
// failed.
//
//   node saintno_sdk.mjs SDK_FOLDER GRAPH.json PHOTO.png
//
// COMFYUI_URL is the address. With COMFYUI_TOKEN, the SDK sends it.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, graphFile, photo] = process.argv.slice(2);
const sdk = await import(pathToFileURL(join(folder, "node_modules/@saintno/comfyui-sdk/build/index.esm.js")));
const { COMFYUI_URL: url, COMFYUI_TOKEN: token } = process.env;
const options = token ? { credentials: { type: "bearer_token", token } } : {};
const api = new sdk.ComfyApi(url, "sdk-client", options);
const graph = JSON.parse(await readFile(graphFile, "utf8"));
const found = {};

async function check(name, call) {
  try {
    await call();
    found[name] = null;
  } catch (error) {
    found[name] = String(error?.stack ?? error).slice(0, 2000);
  }
}

function builder(workflow, outputs) {
  const result = new sdk.PromptBuilder(workflow, ["seed"], outputs).setInputNode("seed", "4.inputs.seed");
  outputs.forEach((name) => result.setOutputNode(name, "6"));
  return result;
}

await check("init", () => api.init().waitForReady());
await check("run", async () => {
  const seen = [];
  const outputs = await new Promise((resolve, reject) => {
    new sdk.CallWrapper(api, builder(graph, ["images"]).input("seed", 11))
      .onPending(() => seen.push("pending"))
      .onStart(() => seen.push("start"))
      .onProgress(() => seen.push("progress"))
      .onFinished(resolve)
      .onFailed(reject)
      .run();
  });
  assert(seen.includes("start"), `events: ${seen}`);
  const [image] = outputs.images.images;
  const blob = await api.getImage(image);
  assert.equal(Buffer.from(await blob.arrayBuffer()).subarray(1, 4).toString(), "PNG");
});
await check("queue and history", async () => {
  const queue = await api.getQueue();
  assert.deepEqual([queue.queue_running, queue.queue_pending], [[], []]);
  const [id] = Object.keys(await api.getHistories());
  assert((await api.getHistory(id)).status.completed);
  assert.equal((await api.pollStatus()).exec_info.queue_remaining, 0);
});
await check("nodes and models", async () => {
  assert((await api.getCheckpoints()).length > 0);
  assert(Array.isArray(await api.getLoras()));
  assert((await api.getSamplerInfo()).sampler);
  assert((await api.getNodeDefs("KSampler")).KSampler);
  assert(Array.isArray(await api.getEmbeddings()));
  assert(Array.isArray(await api.getExtensions()));
  assert((await api.getSystemStats()).system);
});
await check("files", async () => {
  const sent = await api.uploadImage(await readFile(photo), "sdk.png", { override: true });
  assert.equal(sent.info.filename, "sdk.png");
  const mask = await api.uploadMask(await readFile(photo), sent.info);
  assert(mask.info.filename);
});
await check("settings and user data", async () => {
  await api.storeSetting("Comfy.Tested", 7);
  assert.equal(await api.getSetting("Comfy.Tested"), 7);
  await api.storeUserData("tested.json", { a: 1 });
  assert.deepEqual(await (await api.getUserData("tested.json")).json(), { a: 1 });
});
await check("failure of an invalid graph", async () => {
  const broken = structuredClone(graph);
  broken["1"].inputs.ckpt_name = "no such model";
  await assert.rejects(
    new Promise((_resolve, reject) =>
      new sdk.CallWrapper(api, builder(broken, ["images"]).input("seed", 12)).onFailed(reject).run(),
    ),
  );
});
await check("memory and interrupt", async () => {
  await api.freeMemory(true, true);
  await api.interrupt();
});
console.log(JSON.stringify(found));
process.exit(0);
