// The queue: what runs, what comes next in its order, and what came before, newest first.

import { get, here } from "./api.js";
import { $, h, reorder, setText } from "./dom.js";
import { doVerb, onGone, verbsOf } from "./verbs.js";
import { ago, batchStatus, beganAt, ENDED, many, progressOf, since, span, STATUS } from "./words.js";

const PAGE = 50;
const LATER_PAGE = 200;
const LONGEST_WALK = 20;
const MOST_ASKED_ALONE = 20;

const state = {
  now: null,
  seen: "",
  status: "",
  search: "",
  jobs: new Map(),
  batches: new Map(),
  listed: { jobs: [], batches: [] }, // ids, newest first
  cursor: { jobs: null, batches: null }, // where the next page begins; null before the first and after the last
  isLast: { jobs: false, batches: false },
  pages: { jobs: [], batches: [] }, // where each page after the first one began
  effects: new Map(),
  selected: null,
};
const rows = new Map();
const retries = new Map(); // of a job that was retried, which job that made
const gone = new Set(); // jobs that were deleted here
let loading = null;
let generation = 0;

export const counts = () => state.now?.counts ?? null;
export const worker = () => state.now?.worker ?? null;
export const comfyuiAway = () => state.now?.comfyui_away ?? [];
export const unitOf = (kind, id) => (kind === "batch" ? state.batches : state.jobs).get(id);
export const nameOfEffect = (id) => state.effects.get(id) ?? "";
export const retriedAs = (id) => retries.get(id) ?? null;
export const knowRetries = (jobs) =>
  jobs.forEach((each) => each.retry_of && !gone.has(each.id) && retries.set(each.retry_of, each.id));
onGone((id) => {
  // an answer that was under way may still contain it
  gone.add(id);
  // without it, the first one can be retried again
  retries.forEach((made, old) => made === id && retries.delete(old));
});
export const knowEffects = (effects) => effects.forEach((each) => state.effects.set(each.id, each.name));

/** Show only these. */
export function show({ status = state.status, search = state.search }) {
  if (status === state.status && search === state.search) return;
  Object.assign(state, { status, search });
  generation += 1;
  loading = null;
  state.listed = { jobs: [], batches: [] };
  state.cursor = { jobs: null, batches: null };
  state.isLast = { jobs: false, batches: false };
  state.pages = { jobs: [], batches: [] };
  state.seen = "";
  render();
  return refresh({ force: true });
}

/** Ask the server once: cheap while nothing happens. */
export async function refresh({ force = false } = {}) {
  const mine = generation;
  const now = await get("/api/desk/now");
  if (mine !== generation) return;
  const before = state.now;
  state.now = now;
  const seen = JSON.stringify(now);
  if (force || seen !== state.seen || now.running.length) {
    await Promise.all([refreshFirst("jobs", mine), refreshFirst("batches", mine), refreshRunning(now)]);
    const hasAll = await refreshOthers(before, now);
    if (mine !== generation) return;
    state.seen = hasAll ? seen : "";
  }
  render();
}

const pathOf = { jobs: "/api/ai-jobs", batches: "/api/batches" };
function keep(kind, items) {
  items.forEach((each) => state[kind].set(each.id, each));
  if (kind === "jobs") knowRetries(items);
}
const queryFor = (kind, cursor) => ({
  limit: PAGE,
  cursor,
  // items of batches are shown with their batch, unless they are looked for
  ...(kind === "jobs" ? { status: state.status, search: state.search, no_batch: state.search ? null : true } : {}),
});

async function refreshFirst(kind, mine) {
  const page = await get(pathOf[kind], queryFor(kind, null));
  if (mine !== generation) return;
  keep(kind, page.items);
  const ids = page.items.map((each) => each.id);
  const known = new Set(state.listed[kind]);
  if (page.next_cursor === null || !ids.some((id) => known.has(id))) {
    // this is all there is, or so much is new that there may be more between this page and what was known
    state.listed[kind] = ids;
    state.cursor[kind] = page.next_cursor;
    state.isLast[kind] = page.next_cursor === null;
    state.pages[kind] = [];
  } else {
    // what is not in the page any more but would have its place there is gone
    state.listed[kind] = [...ids, ...state.listed[kind].filter((id) => id < ids.at(-1))];
  }
}

async function refreshRunning(now) {
  if (now.running.length) keep("jobs", (await get("/api/ai-jobs", { status: "processing", limit: PAGE })).items);
}

/** What the pages do not hold: units of the queue that are older, and those that have just left it. */
async function refreshOthers(before, now) {
  const active = [...now.running, ...now.waiting];
  const known = new Set(active.map((each) => each.id));
  const inPages = new Set([...state.listed.jobs.slice(0, PAGE), ...state.listed.batches.slice(0, PAGE)]);
  const left = [...(before?.running ?? []), ...(before?.waiting ?? [])].filter((each) => !known.has(each.id));
  const unknown = active.filter((each) => !(each.is_batch ? state.batches : state.jobs).has(each.id));
  const batches = now.running.filter((each) => each.is_batch);
  const wanted = new Map([...left, ...unknown, ...batches].filter((each) => !inPages.has(each.id)).map((each) => [each.id, each]));
  if (wanted.size > MOST_ASKED_ALONE) {
    for (const each of state.pages.jobs) keep("jobs", (await get(pathOf.jobs, { ...queryFor("jobs", each), limit: LATER_PAGE })).items);
  }
  await Promise.all([...wanted.values()].slice(0, MOST_ASKED_ALONE).map(refreshUnit));
  return wanted.size <= MOST_ASKED_ALONE;
}

async function refreshUnit({ id, is_batch: isBatch }) {
  const kind = isBatch ? "batches" : "jobs";
  try {
    keep(kind, [await get(`${pathOf[kind]}/${id}`)]);
  } catch (problem) {
    if (problem.status !== 404) throw problem;
    state[kind].delete(id);
  }
}

export const etaOf = (batch) => (batch.expected_seconds !== null && batch.counts.processing ? `about ${span(batch.expected_seconds)} left` : "");

/** From 0 to 1, with the parts of the items that run. */
export function partOf(batch) {
  if (!batch.counts.processing) return batch.progress;
  const running = [...state.jobs.values()].filter((each) => each.batch_id === batch.id && each.status === "processing");
  return (batch.done + running.reduce((sum, each) => sum + (progressOf(each).part ?? 0), 0)) / batch.total;
}

/** Where it stands among what waits. */
function inLine(id) {
  const place = state.now?.waiting.findIndex((each) => each.id === id) ?? -1;
  return place < 0 ? "" : place === 0 ? "next in queue" : `position ${place + 1} in queue`;
}

/** The next page, when the end of the list comes into view. */
export function loadMore() {
  loading ??= more().finally(() => (loading = null));
  return loading;
}

async function more() {
  const mine = generation;
  const before = shownHistory().length;
  // batches that are in line can fill pages that show nothing
  for (let walked = 0; walked < LONGEST_WALK && shownHistory().length === before; walked += 1) {
    const kind = nextToLoad();
    if (kind === null) break;
    const from = state.cursor[kind];
    const page = await get(pathOf[kind], { ...queryFor(kind, from), limit: LATER_PAGE });
    if (mine !== generation) return;
    keep(kind, page.items);
    state.pages[kind].push(from);
    state.listed[kind].push(...page.items.map((each) => each.id).filter((id) => !state.listed[kind].includes(id)));
    state.cursor[kind] = page.next_cursor;
    state.isLast[kind] = page.next_cursor === null;
  }
  render();
}

/** Down to which id a list is complete. */
const horizon = (kind) => (state.isLast[kind] ? "" : (state.cursor[kind] ?? state.listed[kind].at(-1) ?? "~"));

function nextToLoad() {
  const open = ["jobs", "batches"].filter((kind) => state.cursor[kind] !== null);
  return open.sort((a, b) => (horizon(a) < horizon(b) ? 1 : -1))[0] ?? null;
}

/** Jobs and batches that are not in line, merged, newest first, as far as both lists are complete. */
function shownHistory() {
  const end = horizon("jobs") > horizon("batches") ? horizon("jobs") : horizon("batches");
  const inLine = new Set(isPlain() ? [...(state.now?.running ?? []), ...(state.now?.waiting ?? [])].map((each) => each.id) : []);
  const jobs = state.listed.jobs
    .map((id) => state.jobs.get(id))
    .filter((each) => each && (state.search ? isFound(each) : each.batch_id === null) && (!state.status || each.status === state.status));
  const batches = state.listed.batches.map((id) => state.batches.get(id)).filter((each) => each && fits(each));
  return [...jobs.map(jobUnit), ...batches.map(batchUnit)]
    .filter((each) => each.id >= end && !inLine.has(each.id))
    .sort((a, b) => (a.id < b.id ? 1 : -1));
}

const isPlain = () => !state.status && !state.search;

function fits(batch) {
  if (!batch.total || (state.status && !batch.counts[state.status])) return false;
  return !state.search || (batch.label ?? "").toLowerCase().includes(state.search.toLowerCase());
}

/** An item that is found only by the label of its batch is shown with that one. */
function isFound(job) {
  const batch = state.batches.get(job.batch_id);
  if (!batch || !fits(batch)) return true;
  const search = state.search.toLowerCase();
  return [job.label, job.error, job.id].some((each) => each?.toLowerCase().includes(search));
}

/** As people count: what is only fetched, to run next, waits. */
export function asCounted(kind, unit) {
  const fetched = (state.now?.fetched ?? []).filter((each) => (kind === "batch" ? each.batch_id : each.id) === unit.id).length;
  if (!fetched) return unit;
  if (kind === "job") return unit.status === "processing" ? { ...unit, status: "queued", isFetched: true } : unit;
  const moved = Math.min(fetched, unit.counts.processing);
  const counts = { ...unit.counts, processing: unit.counts.processing - moved, queued: unit.counts.queued + moved };
  return { ...unit, counts, fetched: moved };
}

/** What of a job the verbs ask for. */
export function jobUnit(found) {
  const job = asCounted("job", found);
  return { id: job.id, kind: "job", status: job.status, isFetched: job.isFetched, isRetried: retriedAs(job.id) !== null, job };
}

export function batchUnit(found) {
  const batch = asCounted("batch", found);
  return { id: batch.id, kind: "batch", status: batchStatus(batch), counts: batch.counts, fetched: batch.fetched, batch };
}

function shownUnits() {
  if (!state.now) return [];
  const line = (units) =>
    units
      .map(({ id, is_batch: isBatch }) => (isBatch ? state.batches.get(id) && batchUnit(state.batches.get(id)) : state.jobs.get(id) && jobUnit(state.jobs.get(id))))
      .filter(Boolean);
  if (state.search) return shownHistory();
  if (state.status === "processing") return line(state.now.running);
  const running = new Set(state.now.running.map((each) => each.id));
  const waiting = state.now.waiting.filter((each) => !running.has(each.id));
  if (state.status === "queued") return line(state.now.waiting);
  return state.status ? shownHistory() : [...line(state.now.running), ...line(waiting), ...shownHistory()];
}

// ------------------------------------------------------------------------------------------------ showing

export function render() {
  const units = shownUnits();
  const wanted = units.map((unit) => {
    let row = rows.get(unit.id);
    if (!row) rows.set(unit.id, (row = new Row(unit)));
    row.update(unit);
    return row.node;
  });
  const shown = new Set(units.map((each) => each.id));
  for (const id of [...rows.keys()]) if (!shown.has(id)) rows.delete(id);
  reorder($("rows"), wanted);
  renderAround(units);
}

function renderAround(units) {
  const all = counts();
  if (!all) return;
  const isEmpty = isPlain() && Object.values(all).every((each) => each === 0);
  $("empty").hidden = !isEmpty;
  document.body.classList.toggle("is-empty", isEmpty);
  $("nothing").hidden = isEmpty || units.length > 0;
  const what = state.status ? STATUS[state.status] : "";
  setText($("nothing"), state.search ? `No ${what && `${what} `}jobs match “${state.search}”.` : `No ${what && `${what} `}jobs.`);
  setText($("more"), nextToLoad() && !["queued", "processing"].includes(state.status) ? "…" : "");
}

/** What is most likely wanted of a row. */
const VERBS = { queued: "cancel", processing: "cancel", paused: "resume", failed: "retry", canceled: "retry", completed: "" };

class Row {
  constructor(unit) {
    this.unit = unit;
    this.badge = h("span", { class: "badge" });
    this.name = h("a", { class: "name", href: `#${unit.kind}/${unit.id}` });
    this.sub = h("span", { class: "sub" });
    this.bar = h("progress", { max: 1, "aria-label": "Progress" });
    this.words = h("span", { class: "words" });
    this.time = h("span", { class: "time" });
    this.thumb = h("span", { class: "thumb" });
    this.act = h("button", { type: "button", class: "act", onclick: () => doVerb(this.act.dataset.verb, this.unit) });
    this.node = h(
      "li",
      { class: "row", dataset: { id: unit.id, kind: unit.kind } },
      this.badge,
      h("span", { class: "what" }, this.name, this.sub),
      h("span", { class: "far" }, this.bar, this.words),
      this.thumb,
      this.time,
      this.act,
    );
  }

  update(unit) {
    this.unit = unit;
    const shown = unit.kind === "batch" ? ofBatch(unit.batch) : ofJob(unit.job);
    this.node.dataset.status = unit.status;
    const isOpen = [state.selected, state.jobs.get(state.selected)?.batch_id].includes(unit.id);
    this.node.classList.toggle("open", isOpen);
    if (isOpen) this.name.setAttribute("aria-current", "true");
    else this.name.removeAttribute("aria-current");
    setText(this.badge, STATUS[unit.status]);
    setText(this.name, shown.name);
    setText(this.sub, shown.sub);
    this.bar.hidden = shown.part === undefined;
    if (shown.part === null) this.bar.removeAttribute("value");
    else if (shown.part !== undefined) this.bar.value = shown.part;
    setText(this.words, shown.words);
    this.words.classList.toggle("is-error", Boolean(shown.isError));
    this.words.title = shown.words;
    setText(this.time, shown.time);
    this.picture(shown.picture);
    const verb = verbsOf(unit).some(([each]) => each === VERBS[unit.status]) ? VERBS[unit.status] : "";
    this.act.dataset.verb = verb;
    this.act.hidden = !verb;
    const does = verb.charAt(0).toUpperCase() + verb.slice(1);
    setText(this.act, does);
    this.act.setAttribute("aria-label", `${does} ${shown.name}`);
  }

  picture(output) {
    const id = output?.file_id ?? "";
    if (this.thumb.dataset.id === id) return;
    this.thumb.dataset.id = id;
    this.thumb.replaceChildren(...(id ? [h("img", { src: here(output.url), alt: "", loading: "lazy" })] : []));
  }
}

/** What a job is called: by whoever made it, by its effect, or by what it made. */
export function nameOf(job) {
  return job.label || nameOfEffect(job.effect_id) || job.outputs[0]?.filename || "Workflow";
}

function ofJob(job) {
  const effect = nameOfEffect(job.effect_id);
  const batch = job.batch_id ? state.batches.get(job.batch_id) : null;
  const within = job.batch_id ? `${batch?.label || "batch"}, item ${job.item_no + 1}` : "";
  const shown = {
    name: nameOf(job),
    sub: [nameOf(job).startsWith(effect) ? "" : effect, within, job.seed === null ? "" : `seed ${job.seed}`, `added ${ago(job.created_at)}`].filter(Boolean).join(" · "),
    words: "",
    time: "",
    // larger ones would make the list slow
    picture: job.outputs.find((each) => each.mime_type.startsWith("image/") && (each.size ?? 0) < 3e6),
  };
  if (job.status === "processing") {
    const { part, words } = progressOf(job);
    Object.assign(shown, { part, words, time: beganAt(job) ? span(since(beganAt(job))) : "" });
  } else if (ENDED.has(job.status)) {
    shown.time = job.started_at ? span(since(job.started_at, job.completed_at)) : "";
    Object.assign(shown, { words: job.error ?? "", isError: job.status === "failed" });
  } else if (job.status === "queued") shown.words = inLine(job.id);
  return shown;
}

function ofBatch(batch) {
  const named = ["processing", "failed", "paused", "canceled"].filter((each) => batch.counts[each]);
  const words = [`${batch.done} of ${batch.total}`, ...named.map((each) => `${batch.counts[each]} ${STATUS[each]}`), etaOf(batch), batch.held ?? (batch.counts.processing ? "" : inLine(batch.id))];
  return {
    name: batch.label || "Batch",
    sub: [many(batch.total, "item"), `added ${ago(batch.created_at)}`].join(" · "),
    part: partOf(batch),
    words: words.filter(Boolean).join(" · "),
    time: "",
  };
}

// ------------------------------------------------------------------------------------------------ choosing

export function select(id) {
  state.selected = id;
  render();
}

export function focused() {
  const row = document.activeElement?.closest?.("#rows > .row") ?? [...$("rows").children].find((each) => each.dataset.id === state.selected);
  return row ? rows.get(row.dataset.id) : null;
}

export function step(by) {
  const all = [...$("rows").children];
  const present = all.indexOf(focused()?.node);
  const next = all[present < 0 ? 0 : Math.min(all.length - 1, Math.max(0, present + by))];
  next?.querySelector(".name").focus();
  next?.scrollIntoView({ block: "nearest" });
}
