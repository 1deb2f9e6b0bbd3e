// What is known of one job, or of one batch, live while it is open.

import { get, here } from "./api.js";
import { $, h, reorder, setText, toast } from "./dom.js";
import { asCounted, batchUnit, etaOf, jobUnit, knowRetries, nameOf, nameOfEffect, partOf, retriedAs, unitOf } from "./queue.js";
import { shownArgv } from "./script.js";
import { doVerb, verbsOf } from "./verbs.js";
import { ENDED, progressOf, sentence, since, size, span, STATUS, unfold, when } from "./words.js";

const EVENTS = [
  "queued", "started", "requeued", "retrying", "completed", "failed", "canceled", "paused", "resumed",
  "cancel_requested", "pause_requested", "priority",
];
const LOG_PAGE = 200;
const MOST_LINES = 5000;
const MOST_SHOWN = 12;
const MOST_TEXT = 100000;
const FEW_INPUTS = 8;
const FIRST = new Set(["prompt", "negative_prompt", "seed"]);

let open = null;

export const openUnit = () => open;

/** Show what the address names: `#job/…`, `#batch/…`, or nothing. */
export function show(kind, id) {
  if (open?.kind === kind && open?.id === id) return;
  open?.close();
  open = kind === "job" ? new JobPane(id) : kind === "batch" ? new BatchPane(id) : null;
  document.body.classList.toggle("has-pane", open !== null);
  $("pane").replaceChildren(open ? open.node : h("p", { class: "nothing" }, "Select a job to see its output, inputs and log."));
  $("pane").scrollTop = 0;
  if (open) $("pane").focus({ preventScroll: true });
  return open?.refresh();
}

/** Something was done, or time has passed. */
export const refresh = () => open?.refresh();

/** Nobody looks: be quiet. */
export const sleep = () => open?.unfollow();

class Pane {
  constructor(kind, id) {
    Object.assign(this, { kind, id, isClosed: false, parts: new Map() });
    this.title = h("h2", {}, "…");
    this.badge = h("span", { class: "badge" });
    this.back = h("a", { class: "back", hidden: true }, "");
    this.actions = h("div", { class: "actions", role: "group", "aria-label": "Actions" });
    this.body = h("div", { class: "pane-body" });
    this.node = h(
      "article",
      { class: "sheet" },
      h(
        "header",
        { class: "sheet-head" },
        h("div", { class: "sheet-title" }, this.badge, h("div", {}, this.back, this.title), h("a", { class: "button quiet", href: "#", "aria-label": "Close" }, "✕")),
        this.actions,
      ),
      this.body,
    );
  }

  head(name, unit) {
    setText(this.title, name);
    setText(this.badge, STATUS[unit.status]);
    this.node.dataset.status = unit.status;
    const verbs = verbsOf(unit);
    // a button stays the same while its words do; what it does is of now
    this.acts = new Map(verbs.map(([each, , act]) => [each, act]));
    this.part(this.actions, verbs.map(([each, words]) => [each, words]), () =>
      verbs.map(([each, words, , isDangerous]) =>
        h("button", { type: "button", class: isDangerous ? "danger" : "", dataset: { verb: each }, onclick: () => this.acts.get(each)() }, words),
      ),
    );
  }

  /** Make a part anew only when what it shows has changed. */
  part(node, about, make) {
    const seen = JSON.stringify(about, (_key, value) => (typeof value === "bigint" ? String(value) : value));
    if (this.parts.get(node) === seen) return;
    this.parts.set(node, seen);
    const verb = node.contains(document.activeElement) ? document.activeElement.dataset.verb : null;
    node.replaceChildren(...make().flat().filter(Boolean));
    if (verb) (node.querySelector(`[data-verb="${verb}"]`) ?? node.querySelector("button"))?.focus();
  }

  async refresh() {
    try {
      await this.load();
    } catch (problem) {
      if (problem.status !== 404 || this.isClosed) throw problem;
      this.unfollow();
      setText(this.title, "Not found");
      this.actions.replaceChildren();
      this.body.replaceChildren(h("p", {}, "It was deleted, or never existed."));
    }
  }

  close() {
    this.isClosed = true;
    this.unfollow();
  }

  unfollow() {}

  /** Whether it should be loaded again every second. */
  wantsClock() {
    return false;
  }
}

class JobPane extends Pane {
  constructor(id) {
    super("job", id);
    this.log = { cursor: null, kept: 0, isDone: false };
    this.progress = h("div", { class: "part" });
    this.error = h("div", { class: "part" });
    this.outputs = h("div", { class: "part outputs" });
    this.files = h("div", { class: "part" });
    this.inputs = h("div", { class: "part" });
    this.facts = h("div", { class: "part" });
    this.attempts = h("div", { class: "part" });
    this.bar = h("progress", { max: 1, "aria-label": "Progress" });
    this.words = h("p", { class: "words" });
    this.progress.append(this.bar, this.words);
    this.lines = h("pre", { class: "log", tabindex: "0", "aria-label": "Log" });
    this.logPart = h("section", { class: "part", hidden: true }, h("h3", {}, "Log"), this.lines);
    this.body.append(this.progress, this.error, this.outputs, this.files, this.inputs, this.logPart, this.attempts, this.facts);
  }

  async load() {
    const [job, about] = await Promise.all([get(`/api/ai-jobs/${this.id}`), get(`/api/desk/jobs/${this.id}`)]);
    if (this.isClosed) return;
    knowRetries([job]);
    this.job = job;
    this.about = about;
    this.render();
    await this.readLog();
    if (ENDED.has(job.status)) this.unfollow();
    else this.follow();
  }

  follow() {
    if (this.source || document.hidden) return;
    this.source = new EventSource(`/api/ai-jobs/${this.id}/events`);
    this.source.addEventListener("progress", (event) => {
      this.job.progress = JSON.parse(event.data);
      this.renderProgress();
    });
    // the first ones are those of the past, all at once
    let waiting = null;
    const reload = () => (waiting ??= setTimeout(() => ((waiting = null), this.isClosed || this.refresh().catch(() => {})), 150));
    for (const each of EVENTS) this.source.addEventListener(`job:${each}`, reload);
  }

  unfollow() {
    this.source?.close();
    this.source = null;
  }

  /** Events tell of the job itself; its log and its place in line come by asking. */
  wantsClock() {
    return this.job !== undefined && !ENDED.has(this.job.status);
  }

  render() {
    const { job, about } = this;
    this.head(nameOf(job) === "Workflow" ? about.workflow_name : nameOf(job), { ...jobUnit(job), hasSeed: hasSeed(about) });
    if (job.batch_id) {
      this.back.hidden = false;
      this.back.href = `#batch/${job.batch_id}`;
      setText(this.back, `← ${unitOf("batch", job.batch_id)?.label || "Batch"}, item ${job.item_no + 1}`);
    }
    this.renderProgress();
    this.part(this.error, [job.error, about.error_detail, job.status], () => this.errorPart());
    this.part(this.outputs, [job.outputs.map((each) => each.file_id), about.files], () => this.outputsPart());
    this.part(this.files, about.files, () => this.filesPart());
    this.part(this.inputs, about.inputs.map(({ url, ...rest }) => [rest, Boolean(url)]), () => this.inputsPart());
    this.part(this.attempts, about.attempts, () => this.attemptsPart());
    this.part(this.facts, [job.started_at, job.completed_at, job.attempts, job.retry_of, retriedAs(job.id)], () => this.factsPart());
  }

  renderProgress() {
    const job = asCounted("job", this.job);
    const isRunning = job.status === "processing";
    this.progress.hidden = ENDED.has(job.status);
    this.bar.hidden = !isRunning;
    if (!isRunning) {
      setText(this.words, job.waiting?.text ?? (job.status === "paused" ? "Paused." : job === this.job ? "Being added to the queue." : "Runs next; its inputs are ready."));
      return;
    }
    const { part, words } = progressOf(job);
    if (part === null) this.bar.removeAttribute("value");
    else this.bar.value = part;
    setText(this.words, [part === null ? "" : `${Math.round(part * 100)} %`, words].filter(Boolean).join(" · ") || "Starting…");
  }

  errorPart() {
    const { job, about } = this;
    if (!job.error) return [];
    const raw = about.error_detail && about.error_detail !== job.error ? about.error_detail : null;
    return [
      h("p", { class: job.status === "failed" ? "error" : "remark" }, job.error),
      raw && h("details", {}, h("summary", {}, "Show full error"), h("pre", { class: "raw", tabindex: "0" }, unfold(raw))),
    ];
  }

  /** The output that the queue keeps, and what else the run made, as far as it can be looked at. */
  outputsPart() {
    const others = this.about.files.filter((each) => !each.is_output && each.url && isShown(each.mime_type)).slice(0, MOST_SHOWN);
    return [
      ...this.job.outputs.map(shownOutput),
      others.length ? h("div", { class: "others" }, others.map((each) => shownOutput({ ...each, filename: each.name }))) : null,
    ];
  }

  filesPart() {
    const { files } = this.about;
    if (!files.length) return [];
    const folders = [...new Set(files.map(folderOf))];
    const named = (each) => (folders.length > 1 ? each.path : each.name);
    const line = (each) => [each.url ? h("a", { href: each.url, download: each.name }, named(each)) : h("span", {}, named(each)), h("span", { class: "hint" }, each.url ? size(each.size) : "no longer available")];
    return [
      h("h3", {}, files.length > 1 ? `${files.length} files` : "File"),
      folders.length > 1 ? null : h("p", { class: "hint" }, `in ${folders[0]}`),
      h("ul", { class: "made" }, files.map((each) => h("li", {}, line(each)))),
    ];
  }

  /** What people change most, and what was changed; a graph may have hundreds. */
  inputsPart() {
    const inputs = this.about.inputs.filter((each) => each.value !== "");
    if (!inputs.length) return [];
    const isSeen = (each) => inputs.length <= FEW_INPUTS || each.url || FIRST.has(each.role) || !each.is_default;
    const rest = inputs.filter((each) => !isSeen(each));
    return [
      h("h3", {}, "Inputs"),
      h("dl", { class: "inputs" }, inputs.filter(isSeen).map(shownInput)),
      rest.length ? h("details", {}, h("summary", {}, `${rest.length} more with default values`), h("dl", { class: "inputs" }, rest.map(shownInput))) : null,
    ];
  }

  attemptsPart() {
    const { attempts } = this.about;
    // one that went well says nothing that is not said already
    if (!attempts.some((each) => each.error || each.about?.argv || attempts.length > 1)) return [];
    return [
      h("h3", {}, "Attempts"),
      h(
        "ol",
        { class: "attempts" },
        attempts.map((each) =>
          h(
            "li",
            {},
            h("strong", {}, each.outcome ?? "running"),
            each.started_at ? ` · ${when(each.started_at)}` : "",
            each.started_at && each.ended_at ? ` · ${span(since(each.started_at, each.ended_at))}` : "",
            each.seed !== null ? ` · seed ${each.seed}` : "",
            hasNumber(each.about?.exit_code) ? ` · exit code ${each.about.exit_code}` : "",
            each.error ? h("p", { class: "remark" }, sentence(each.error)) : null,
            each.about?.argv ? h("details", {}, h("summary", {}, "Command"), shownArgv(each.about.argv), each.about.log ? h("p", { class: "remark" }, `Full output: ${each.about.log}`) : null) : null,
          ),
        ),
      ),
    ];
  }

  factsPart() {
    const { job, about } = this;
    const took = job.started_at && job.completed_at ? span(since(job.started_at, job.completed_at)) : "";
    const waited = job.started_at && job.completed_at ? span(since(job.created_at, job.started_at)) : "";
    const facts = [
      ["Workflow", nameOfEffect(job.effect_id) || about.workflow_name],
      ["Created", when(job.created_at)],
      ["Started", when(job.started_at)],
      ["Finished", when(job.completed_at)],
      ["Time in queue", waited],
      ["Duration", took],
      ["Attempts", job.attempts ? `${job.attempts} of ${job.max_attempts}` : ""],
      ["Retry of", linkTo(job.retry_of)],
      ["Retried as", linkTo(retriedAs(job.id))],
      ["Job ID", job.id],
    ];
    return [h("h3", {}, "About"), h("dl", { class: "facts" }, facts.filter(([, value]) => value).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]))];
  }

  /** What is new in the log. A page that is not full is read again, since it may grow. */
  async readLog() {
    const { log } = this;
    if (log.isDone || this.isReading) return;
    this.isReading = true;
    try {
      const hasEnded = ENDED.has(this.job.status);
      let page;
      do {
        page = await get(`/api/ai-jobs/${this.id}/logs`, { limit: LOG_PAGE, cursor: log.cursor });
        if (this.isClosed) return;
        this.addLines(page.items.slice(log.kept));
        log.kept = page.next_cursor === null ? page.items.length : 0;
        if (page.next_cursor !== null) log.cursor = page.next_cursor;
      } while (page.next_cursor !== null);
      log.isDone = hasEnded;
    } finally {
      this.isReading = false;
    }
  }

  addLines(lines) {
    if (!lines.length) return;
    const { lines: node } = this;
    const wasAtEnd = this.logPart.hidden || node.scrollHeight - node.scrollTop - node.clientHeight < 40;
    this.logPart.hidden = false;
    for (const each of lines) node.append(h("span", { title: when(each.created_at) }, `${each.line}\n`));
    while (node.childElementCount > MOST_LINES) node.firstChild.remove();
    if (wasAtEnd) node.scrollTop = node.scrollHeight;
  }
}

function shownOutput(output) {
  const url = here(output.url);
  return h(
    "figure",
    { class: "output" },
    shownMedia(output.mime_type, url, output.filename),
    h(
      "figcaption",
      {},
      h("span", { class: "filename" }, output.filename),
      h("span", { class: "sub" }, size(output.size)),
      isText(output.mime_type) ? h("button", { type: "button", onclick: (event) => copyText(event.target, url) }, "Copy") : null,
      h("a", { class: "button", href: url, download: output.filename }, "Download"),
    ),
  );
}

const readText = async (url) => {
  const answer = await fetch(url);
  if (!answer.ok) throw new Error("The text could not be read.");
  return answer.text();
};

function shownText(url, name) {
  const shown = h("pre", { class: "raw", tabindex: "0", "aria-label": `Output: ${name}` }, "…");
  readText(url)
    .then((text) => (shown.textContent = text.length > MOST_TEXT ? `${text.slice(0, MOST_TEXT)}…` : text))
    .catch((error) => (shown.textContent = error.message));
  return shown;
}

async function copyText(button, url) {
  try {
    await navigator.clipboard.writeText(await readText(url));
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  } catch {
    toast("The text could not be copied. Select it, or download it.", "error");
  }
}

const hasSeed = (about) => about.inputs.some((each) => each.type === "number" && each.role === "seed");
const linkTo = (id) => (id ? h("a", { href: `#job/${id}` }, id.slice(-8)) : "");
const isText = (type) => /^text\/plain(;|$)/.test(type);
const isShown = (type) => isText(type) || /^(image|video|audio)\//.test(type);
const folderOf = (file) => file.path.slice(0, -file.name.length - 1);
const hasNumber = (value) => value !== null && value !== undefined;

function shownMedia(type, url, name) {
  if (type.startsWith("image/")) return h("a", { class: "media", href: url, target: "_blank", rel: "noopener" }, h("img", { src: url, alt: `Output: ${name}` }));
  if (type.startsWith("video/")) return h("div", { class: "media" }, h("video", { src: url, controls: true, loop: true, playsinline: true, preload: "metadata", "aria-label": `Output: ${name}` }));
  if (type.startsWith("audio/")) return h("audio", { src: url, controls: true, preload: "metadata", "aria-label": `Output: ${name}` });
  return isText(type) ? shownText(url, name) : null;
}

function shownInput({ label, type, value, url }) {
  let shown = String(value ?? "");
  if (url) {
    const address = here(url);
    const preview =
      type === "image"
        ? h("img", { src: address, alt: "" })
        : type === "video"
          ? h("video", { src: address, muted: true, preload: "metadata", controls: true })
          : null;
    shown = h("span", { class: "input-file" }, preview, h("a", { href: address, download: value ?? "" }, value ?? "file"));
  } else if (typeof value === "boolean") shown = value ? "yes" : "no";
  return [h("dt", {}, label), h("dd", {}, shown)];
}

class BatchPane extends Pane {
  constructor(id) {
    super("batch", id);
    this.bar = h("progress", { max: 1, "aria-label": "Progress" });
    this.words = h("p", { class: "words" });
    this.list = h("ol", { class: "items" });
    this.moreButton = h("button", { type: "button", hidden: true, onclick: () => this.readMore() }, "Show more");
    this.items = new Map();
    this.nodes = new Map();
    this.cursor = null;
    this.why = h("span", {});
    this.held = h("p", { class: "notice", hidden: true }, this.why, h("button", { type: "button", onclick: () => doVerb("resume", batchUnit(this.batch)) }, "Resume all"));
    this.body.append(h("div", { class: "part" }, this.bar, this.words, this.held), h("h3", {}, "Items"), this.list, this.moreButton);
  }

  async load() {
    const first = this.items.size === 0;
    const [batch, page] = await Promise.all([
      get(`/api/batches/${this.id}`),
      get("/api/ai-jobs", { batch_id: this.id, limit: 100 }),
    ]);
    if (this.isClosed) return;
    if (first) this.cursor = page.next_cursor;
    this.know(page.items);
    this.batch = batch;
    await Promise.all([this.refreshActive(page.items), this.findSeed(page.items)]);
    this.render(batch);
  }

  know(items) {
    items.forEach((each) => this.items.set(each.id, each));
    knowRetries(items);
  }

  /** All items run the same workflow. */
  async findSeed([first]) {
    if (this.hasSeed === undefined && first) this.hasSeed = hasSeed(await get(`/api/desk/jobs/${first.id}`));
  }

  /** Items that are older than the first page and have not ended: those that run are fetched, the others when they do. */
  async refreshActive(inPage) {
    const known = new Set(inPage.map((each) => each.id));
    const stale = [...this.items.values()].filter((each) => each.status === "processing" && !known.has(each.id));
    const running = await get("/api/ai-jobs", { batch_id: this.id, status: "processing", limit: 50 });
    this.know(running.items);
    const fresh = new Set(running.items.map((each) => each.id));
    await Promise.all(
      stale.filter((each) => !fresh.has(each.id)).map(async (each) => this.items.set(each.id, await get(`/api/ai-jobs/${each.id}`))),
    );
  }

  wantsClock() {
    return this.batch !== undefined && this.batch.done < this.batch.total;
  }

  async readMore() {
    const page = await get("/api/ai-jobs", { batch_id: this.id, limit: 200, cursor: this.cursor });
    this.know(page.items);
    this.cursor = page.next_cursor;
    await this.refresh();
  }

  render(found) {
    const unit = batchUnit(found);
    const { batch } = unit;
    this.head(batch.label || "Batch", { ...unit, hasSeed: this.hasSeed });
    this.bar.value = partOf(batch);
    const counted = Object.entries(batch.counts).filter(([, count]) => count).map(([status, count]) => `${count} ${STATUS[status]}`);
    setText(this.words, [`${batch.done} of ${batch.total}`, ...counted, etaOf(batch)].filter(Boolean).join(" · "));
    this.held.hidden = !batch.held;
    setText(this.why, batch.held ?? "");
    this.moreButton.hidden = this.cursor === null;
    const retried = new Set([...this.items.values()].map((each) => each.retry_of));
    const shown = [...this.items.values()].filter((each) => !retried.has(each.id)).sort((a, b) => a.item_no - b.item_no);
    reorder(this.list, shown.map((each) => this.itemOf(asCounted("job", each))));
  }

  itemOf(job) {
    let node = this.nodes.get(job.id);
    if (!node) this.nodes.set(job.id, (node = h("li", { class: "item" })));
    node.dataset.status = job.status;
    this.part(node, [job.status, job.error, percentOf(job)], () => shownItem(job));
    return node;
  }
}

const percentOf = (job) => (job.status === "processing" && job.progress ? Math.round((job.progress.value ?? 0) * 100) : null);

function shownItem(job) {
  const picture = job.outputs.find((each) => each.mime_type.startsWith("image/") && (each.size ?? 0) < 3e6);
  const percent = percentOf(job);
  return [
    h("span", { class: "item-no" }, String(job.item_no + 1)),
    h("span", { class: "badge" }, percent === null ? STATUS[job.status] : `${percent} %`),
    h("a", { href: `#job/${job.id}`, dataset: { verb: "open" } }, job.label || `Item ${job.item_no + 1}`),
    h("span", { class: "thumb" }, picture ? h("img", { src: here(picture.url), alt: "", loading: "lazy" }) : null),
    job.error ? h("span", { class: job.status === "failed" ? "words is-error" : "words", title: job.error }, job.error) : null,
  ];
}
