// Every call that the documentation of @comfyorg/sdk shows, and what ComfyRelay adds to the Comfy API. Each check is
// independent of the others. Prints, as JSON, what each one found: null, or why it failed.
//
//   COMFY_BASE_URL=http://127.0.0.1:8189 node comfy_sdk.mjs SDK_FOLDER PHOTO.png
//
// ImageScale must be slow, ImageCrop must fail, and only one worker may have SaveText: see test_typescript_sdk.py.

import assert from "node:assert/strict";
import { createReadStream } from "node:fs";
import { mkdtemp, readFile, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, photo] = process.argv.slice(2);
const sdk = await import(pathToFileURL(join(folder, "node_modules/@comfyorg/sdk/dist/index.js")));
const { ComfyLow } = await import(pathToFileURL(join(folder, "node_modules/@comfyorg/sdk/dist/low/index.js")));
const base = process.env.COMFY_BASE_URL;
const apiKey = process.env.COMFY_API_KEY;
const client = new sdk.Comfy({ apiKey, clientInfo: "tests" });
const out = await mkdtemp(join(tmpdir(), "sdk-"));
const timeoutMs = 60_000;

let color = 0;
function empty() {
  color += 1;
  return { class_type: "EmptyImage", inputs: { width: 16, height: 16, batch_size: 1, color } };
}

function graph(middle = { class_type: "ImageInvert", inputs: { image: ["1", 0] } }) {
  const save = { class_type: "SaveImage", inputs: { images: ["2", 0], filename_prefix: "sdk" } };
  return { 1: empty(), 2: middle, 3: save };
}

const scale = { image: ["1", 0], upscale_method: "area", width: 8, height: 8, crop: "disabled" };
const slow = () => graph({ class_type: "ImageScale", inputs: scale });
const failing = () => graph({ class_type: "ImageCrop", inputs: { image: ["1", 0], x: 0, y: 0, width: 8, height: 8 } });

async function run(made = graph()) {
  return client.run(client.workflows.fromJson(made), { timeoutMs });
}

async function call(method, path, body, headers = {}) {
  const sent = { ...(apiKey ? { Authorization: `Bearer ${apiKey}` } : {}), "Content-Type": "application/json" };
  const answer = await fetch(`${base}/api/v2${path}`, {
    method,
    headers: { ...sent, ...headers },
    body: body && JSON.stringify(body),
  });
  const text = await answer.text();
  assert.ok(answer.ok, `${answer.status} ${text}`);
  return text ? JSON.parse(text) : null;
}

async function settled(id) {
  return (await client.jobs.get(id)).wait(timeoutMs);
}

const checks = {
  async "workflows.fromFile, fromJson, fromString, setInput"() {
    const path = join(out, "workflow_api.json");
    await writeFile(path, JSON.stringify(graph()));
    const read = await client.workflows.fromFile(path);
    read.setInput("1", "width", 24);
    assert.equal((await client.run(read, { timeoutMs })).status, "succeeded");
    const text = client.workflows.fromString(JSON.stringify(graph()));
    assert.equal((await client.run(text, { timeoutMs })).getOutputs("3").length, 1);
  },
  async "submit, wait, refresh, result"() {
    const job = await client.submit(client.workflows.fromJson(graph()));
    assert.equal((await job.refresh()).id, job.id);
    assert.equal((await job.wait(timeoutMs)).status, "succeeded");
    assert.equal((await job.result()).outputs.length, 1);
  },
  async "assets.fromFile, fromBytes, fromStream, fromUrl"() {
    const bytes = await readFile(photo);
    const server = createServer((_request, answer) => answer.setHeader("Content-Type", "image/png").end(bytes));
    await new Promise((done) => server.listen(0, "127.0.0.1", done));
    const url = `http://127.0.0.1:${server.address().port}/photo.png`;
    const made = [
      client.assets.fromFile(photo),
      client.assets.fromBytes(bytes, { filename: "bytes.png", contentType: "image/png" }),
      await client.assets.fromStream(createReadStream(photo), { filename: "stream.png", contentType: "image/png" }),
      await client.assets.fromUrl(url),
    ];
    server.close();
    for (const asset of made) {
      const wf = client.workflows.fromJson({ ...graph(), 1: { class_type: "LoadImage", inputs: {} } });
      wf.setInput("1", "image", asset);
      assert.equal((await client.run(wf, { timeoutMs })).status, "succeeded");
    }
  },
  async "asset.commit, hash, asReference, createdNew, get, delete"() {
    const bytes = Buffer.concat([await readFile(photo), Buffer.from([++color])]);
    const asset = client.assets.fromBytes(bytes, { filename: "commit.png", contentType: "image/png" });
    const id = await asset.commit();
    assert.equal(asset.createdNew, true);
    assert.match(await asset.hash(), /^blake3:/);
    assert.equal((await asset.asReference()).info.id, id);
    const again = client.assets.fromBytes(bytes, { filename: "commit.png", contentType: "image/png" });
    await again.commit();
    assert.equal(again.createdNew, false);
    assert.equal((await client.assets.get(id)).id, id);
    await asset.delete();
    if (again.id !== id) await client.assets.delete(again.id);
    await assert.rejects(client.assets.get(id), sdk.NotFound);
  },
  async "output.toFile, toBytes, range, getDownloadUrl, jobId"() {
    const job = await run();
    const [output] = job.getOutputs("3");
    assert.deepEqual([output.type, output.contentType, output.jobId], ["image", "image/png", job.id]);
    const bytes = await output.toBytes();
    assert.equal(bytes.length, output.sizeBytes);
    assert.equal((await output.toBytes({ range: [0, 3] })).length, 4);
    await output.toFile(join(out, "out.png"));
    assert.equal((await readFile(join(out, "out.png"))).length, bytes.length);
    const { url } = await output.getDownloadUrl();
    assert.equal((await (await fetch(url)).arrayBuffer()).byteLength, bytes.length);
  },
  async "job.events: status, progress and outputs"() {
    const job = await client.submit(client.workflows.fromJson(graph()));
    const seen = [];
    for await (const event of job.events(AbortSignal.timeout(timeoutMs))) seen.push(event);
    assert.ok(seen.some((event) => event.kind === "outputReady"));
    assert.equal(seen.filter((event) => event.kind === "statusChange").at(-1).status, "succeeded");
  },
  async "job.events: nodes done and steps"() {
    const job = await client.submit(client.workflows.fromJson(slow()));
    let found = null;
    for await (const event of job.events(AbortSignal.timeout(timeoutMs))) {
      if (event.kind === "progress" && event.steps) {
        found = event;
        await job.cancel();
        break;
      }
    }
    assert.equal(found.currentNode, "2");
    assert.equal(found.nodesTotal, 3);
    assert.ok(found.nodesDone >= 1);
  },
  async "job.cancel"() {
    const job = await client.submit(client.workflows.fromJson(slow()));
    await job.cancel();
    assert.equal((await job.wait(timeoutMs)).status, "canceled");
    assert.equal((await job.cancel()).status, "canceled");
  },
  async "AbortSignal and timeoutMs"() {
    const job = await client.submit(client.workflows.fromJson(slow()));
    await assert.rejects(job.wait(undefined, AbortSignal.timeout(50)));
    await assert.rejects(job.wait(50));
    await job.cancel();
  },
  async "jobs.get, job.getWorkflow"() {
    const made = graph();
    const job = await client.jobs.get((await run(made)).id);
    const { workflow, format } = await job.getWorkflow();
    assert.equal(format, "api");
    assert.deepEqual(JSON.parse(JSON.stringify(workflow)), made);
  },
  async "JobFailed with the node"() {
    const failed = await run(failing()).catch((error) => error);
    assert.ok(failed instanceof sdk.JobFailed, String(failed));
    assert.deepEqual([failed.error.node_id, failed.error.class_type], ["2", "ImageCrop"]);
  },
  async "jobs run on the worker that has their nodes"() {
    const text = { text: ["1", 0], filename_prefix: "note", format: "txt" };
    for (let number = 0; number < 4; number += 1) {
      const value = { class_type: "PrimitiveString", inputs: { value: `note ${(color += 1)}` } };
      const job = await run({ 1: value, 2: { class_type: "SaveText", inputs: text } });
      assert.equal(job.status, "succeeded");
    }
  },
  async "NotFound"() {
    await assert.rejects(client.jobs.get("00000000-0000-7000-8000-000000000000"), sdk.NotFound);
    await assert.rejects(client.jobs.get("no-such-id"), sdk.NotFound);
  },
  async "InvalidWorkflow"() {
    const wf = client.workflows.fromJson({ 1: { class_type: "NoSuchNode", inputs: {} } });
    await assert.rejects(client.submit(wf), sdk.InvalidWorkflow);
    await assert.rejects(client.submit(client.workflows.fromJson({ nodes: [], links: [] })), sdk.InvalidWorkflow);
  },
  async "MissingAsset"() {
    const info = { id: "00000000-0000-7000-8000-000000000000" };
    const load = { class_type: "LoadImage", inputs: { image: { __type: "core/ASSET", info } } };
    await assert.rejects(client.submit(client.workflows.fromJson({ ...graph(), 1: load })), sdk.MissingAsset);
  },
  async "IdempotencyKeyReuse"() {
    const idempotencyKey = `key-${Date.now()}`;
    await client.submit(client.workflows.fromJson(graph()), { idempotencyKey });
    const again = client.submit(client.workflows.fromJson(graph()), { idempotencyKey });
    await assert.rejects(again, sdk.IdempotencyKeyReuse);
  },
  async "@comfyorg/sdk/low"() {
    const low = new ComfyLow(base, { apiKey });
    assert.ok(low);
    await call("GET", "/health");
  },
  async "apiKey of partner nodes"() {
    const wf = client.workflows.fromJson(graph());
    assert.equal((await client.run(wf, { apiKey: "comfyui-partner", timeoutMs })).status, "succeeded");
  },
  async "Unauthorized"() {
    const stranger = new sdk.Comfy({ apiKey: "wrong" });
    await assert.rejects(stranger.jobs.get("00000000-0000-7000-8000-000000000000"), sdk.Unauthorized);
  },
  async "priority decides the order"() {
    // The slow jobs keep both GPUs busy while the others wait. A worker fetches the next one in advance.
    const busy = [await call("POST", "/jobs", { workflow: slow() }), await call("POST", "/jobs", { workflow: slow() })];
    for (let number = 0; number < 4; number += 1) await call("POST", "/jobs", { workflow: graph() });
    const low = await call("POST", "/jobs", { workflow: graph() });
    const high = await call("POST", "/jobs", { workflow: graph(), priority: 10 });
    const waiting = await call("GET", `/jobs/${high.id}`);
    const behind = await call("GET", `/jobs/${low.id}`);
    for (const { id } of busy) await call("POST", `/jobs/${id}/cancel`);
    await Promise.all([settled(high.id), settled(low.id)]);
    assert.ok(waiting.queue_position < behind.queue_position, "the higher priority is not ahead");
  },
  async "webhook_url is called"() {
    let received;
    const arrived = new Promise((done) => (received = done));
    const server = createServer((request, answer) => {
      request.resume();
      answer.end();
      received();
    });
    await new Promise((done) => server.listen(0, "127.0.0.1", done));
    const webhook_url = `http://127.0.0.1:${server.address().port}/hook`;
    const limit = AbortSignal.timeout(timeoutMs);
    const late = new Promise((_done, fail) => limit.addEventListener("abort", () => fail(new Error("no webhook"))));
    // Without this, it would end the process after another failure.
    late.catch(() => {});
    try {
      await call("POST", "/jobs", { workflow: graph(), webhook_url });
      await Promise.race([arrived, late]);
    } finally {
      server.closeAllConnections();
      server.close();
    }
  },
  async "labels, and lists filtered by them"() {
    const metadata = { project: `p${Date.now()}` };
    const job = await call("POST", "/jobs", { workflow: graph(), metadata });
    const found = await call("GET", `/jobs?metadata[project]=${metadata.project}`);
    assert.deepEqual(found.jobs.map((item) => [item.id, item.metadata]), [[job.id, metadata]]);
  },
  async "inputs by node"() {
    const job = await call("POST", "/jobs", { workflow: graph(), inputs: { "1.width": 40 } });
    assert.equal((await call("GET", `/jobs/${job.id}/workflow`)).workflow[1].inputs.width, 40);
  },
  async "files of the editor"() {
    const slot = { name: "images", type: "IMAGE", link: 1 };
    const nodes = [
      { id: 1, type: "EmptyImage", mode: 0, inputs: [], outputs: [{ name: "IMAGE", type: "IMAGE", links: [1] }] },
      { id: 2, type: "SaveImage", mode: 0, inputs: [slot], outputs: [], widgets_values: ["sdk"] },
    ];
    nodes[0].widgets_values = [16, 16, 1, ++color];
    const workflow = { nodes, links: [[1, 1, 0, 2, 0, "IMAGE"]], version: 0.4 };
    assert.equal((await settled((await call("POST", "/jobs", { workflow })).id)).status, "succeeded");
  },
  async "Last-Event-ID"() {
    const job = await run();
    const path = `${base}/api/v2/jobs/${job.id}/events`;
    const headers = { ...(apiKey ? { Authorization: `Bearer ${apiKey}` } : {}), "Last-Event-ID": "0" };
    const text = await (await fetch(path, { headers, signal: AbortSignal.timeout(10_000) })).text();
    assert.match(text, /queued[\s\S]*running[\s\S]*succeeded/);
  },
};

const found = {};
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    found[name] = null;
  } catch (error) {
    found[name] = `${error.name}: ${error.message}`.split("\n")[0].slice(0, 200);
  }
}
console.log(JSON.stringify(found, null, 1));
process.exit(0);
