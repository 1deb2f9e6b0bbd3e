// What can be done with a job or a batch, and doing it. Every button and key comes here.

import { all, get, post, remove } from "./api.js";
import { ask, toast } from "./dom.js";
import { ENDED, many } from "./words.js";

const MOST_IDS = 1000;
const MOST_NAMED = 5;
const changed = new EventTarget();
export const onChange = (listener) => changed.addEventListener("change", listener);
export const notifyChange = () => changed.dispatchEvent(new Event("change"));
export const onGone = (listener) => changed.addEventListener("gone", (event) => listener(event.detail));

/** Do it, show the result, and let the page refresh. */
async function run(work) {
  try {
    const answer = await work();
    if (answer?.message && answer.message !== "OK") toast(answer.message);
    return answer?.data ?? true;
  } catch (problem) {
    toast(problem.message, "error");
    return null;
  } finally {
    notifyChange();
  }
}

const job = (id, verb, body) => run(() => post(`/api/ai-jobs/${id}/${verb}`, body));
const batch = (id, verb, body) => run(() => post(`/api/batches/${id}/${verb}`, body));

/** The verbs that make sense now: [name, words, do, is it dangerous]. */
export const verbsOf = (unit) => (unit.kind === "batch" ? ofBatch(unit) : ofJob(unit));

function ofJob({ id, status, hasSeed = false, isFetched = false, isRetried = false }) {
  const made = (verb) => (body) => async () => {
    const job_ = await job(id, verb, body);
    if (job_) location.hash = `job/${job_.id}`;
  };
  const [retry, again] = [made("retry"), made("again")];
  const found = [];
  if (status === "queued") {
    found.push(["pause", "Pause", () => job(id, "pause", { mode: "after" })]);
    // what the worker has fetched is next already
    if (!isFetched) found.push(...moves((to) => job(id, "move", { to })));
  }
  if (status === "processing") found.push(["pause-now", "Pause now", () => job(id, "pause", { mode: "now" })]);
  if (status === "paused") found.push(["resume", "Resume", () => job(id, "resume")]);
  if ((status === "failed" || status === "canceled") && !isRetried) {
    found.push(["retry", "Retry", retry(undefined)]);
    if (hasSeed) found.push(["retry-seeds", "Retry with a new seed", retry({ new_seeds: true })]);
  }
  if (status === "completed") {
    found.push(["again", "Run again", again(undefined)]);
    if (hasSeed) found.push(["again-seeds", "Run again with a new seed", again({ new_seeds: true })]);
  }
  if (ENDED.has(status)) found.push(["delete", "Delete", () => deleteJob(id), true]);
  else found.push(["cancel", "Cancel", () => job(id, "cancel"), true]);
  return found;
}

function ofBatch({ id, counts, hasSeed = false, fetched = 0 }) {
  const active = counts.queued + counts.processing + counts.paused;
  const found = [];
  if (counts.queued || counts.processing) {
    found.push(["pause", "Pause after the current job", () => batch(id, "pause", { mode: "after" })]);
    if (counts.processing) found.push(["pause-now", "Pause now", () => batch(id, "pause", { mode: "now" })]);
  }
  if (counts.paused) found.push(["resume", "Resume", () => batch(id, "resume")]);
  if (counts.queued > fetched) found.push(...moves((to) => batch(id, "move", { to })));
  if (counts.failed) {
    found.push(["retry", `Retry ${counts.failed} failed`, () => batch(id, "retry-failed")]);
    if (hasSeed) found.push(["retry-seeds", "Retry failed with new seeds", () => batch(id, "retry-failed", { new_seeds: true })]);
  }
  // while others go on, what was canceled was not wanted
  if (counts.canceled && !active) {
    found.push([counts.failed ? "retry-canceled" : "retry", `Retry ${counts.canceled} canceled`, () => retryCanceled(id)]);
  }
  if (active) found.push(["cancel", "Cancel", () => cancelBatch(id, active), true]);
  else {
    found.push(["again", hasSeed ? "Run all again with new seeds" : "Run all again", () => runAgain(id, hasSeed)]);
    found.push(["delete", "Delete", () => deleteBatch(id), true]);
  }
  return found;
}

const moves = (move) => [
  ["top", "Run next", () => move("top")],
  ["up", "Move up", () => move("up")],
  ["down", "Move down", () => move("down")],
];

async function runAgain(id, hasSeed) {
  const made = await batch(id, "again", { new_seeds: hasSeed });
  if (made) location.hash = `batch/${made.id}`;
}

async function cancelBatch(id, active) {
  if (await ask(`Cancel ${many(active, "unfinished job")} of this batch?`, "Cancel jobs")) await batch(id, "cancel");
}

async function deleteJob(id) {
  const about = await run(() => get(`/api/desk/jobs/${id}`).then((data) => ({ data })));
  if (!about) return;
  const files = about.deleted_with_it;
  const named = files.length ? ` Also deleted: ${files.slice(0, MOST_NAMED).join(", ")}${files.length > MOST_NAMED ? ` and ${files.length - MOST_NAMED} more` : ""}.` : "";
  if (!(await ask(`Delete this job, its output and its log?${named} This cannot be undone.`, "Delete"))) return;
  if (!(await run(() => remove(`/api/ai-jobs/${id}`)))) return;
  changed.dispatchEvent(new CustomEvent("gone", { detail: id }));
  location.hash = "";
}

async function deleteBatch(id) {
  const text = "Delete this batch with all its outputs and logs? Its files in the output folder are deleted, too; what a script saved in its own folders stays. This cannot be undone.";
  if (!(await ask(text, "Delete"))) return;
  if (await bulk("delete", { filter: { batch_id: id } }, "deleted")) location.hash = "";
}

/** By ids, which keep the order of the items; a filter begins with the newest. */
async function retryCanceled(id) {
  const items = (await run(async () => ({ data: await all("/api/ai-jobs", { batch_id: id, status: "canceled" }) }))) ?? [];
  const ids = items.map((each) => each.id).reverse();
  for (let from = 0; from < ids.length; from += MOST_IDS) {
    await bulk("retry", { ids: ids.slice(from, from + MOST_IDS) }, "retried");
  }
}

function bulk(action, among, done, mode) {
  return run(async () => {
    const { data } = await post("/api/ai-jobs/bulk", { action, ...among, ...(mode ? { mode } : {}) });
    const refused = data.refused[0] ? ` ${data.refused[0].detail}` : "";
    return { data, message: `${many(data.changed, "job")} ${done}.${refused}` };
  });
}

export async function pauseAll(mode) {
  await bulk("pause", { filter: { status: "queued" } }, "paused", mode);
  // after what runs, too: what was fetched to run next is called processing, and is given back
  await bulk("pause", { filter: { status: "processing" } }, "will pause", mode);
}

export const resumeAll = () => bulk("resume", { filter: { status: "paused" } }, "resumed");

/** By key: the verb of this name, if it makes sense now. */
export function doVerb(name, unit) {
  const found = verbsOf(unit).find(([each]) => each === name);
  if (found) found[2]();
  else if (name !== "retry") toast("Already finished.");
  else toast(unit.isRetried ? "Already retried." : "Only failed or canceled jobs can be retried.");
}
