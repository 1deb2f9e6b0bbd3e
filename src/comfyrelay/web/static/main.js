// The page as a whole: its header, its keys, its dropping, and the clock that keeps it live.

import { get } from "./api.js";
import * as adding from "./adding.js";
import { $, h, setText, toast } from "./dom.js";
import * as pane from "./pane.js";
import * as queue from "./queue.js";
import { doVerb, onChange, pauseAll, resumeAll } from "./verbs.js";
import { STATUS } from "./words.js";

const EVERY_MS = 1000;
const HIDDEN_HINT = "comfyrelay.stand-in";

// ------------------------------------------------------------------------------------------------ header

const FILTERS = ["", ...Object.keys(STATUS)];
let desk = null;

function makeFilters() {
  $("filters").append(
    ...FILTERS.map((status) =>
      h("button", { type: "button", class: "chip", "aria-pressed": String(status === ""), dataset: { status }, onclick: () => filter(status) }, h("span", {}, status ? STATUS[status] : "all"), h("b", {})),
    ),
  );
}

function filter(status) {
  for (const each of $("filters").children) each.setAttribute("aria-pressed", String(each.dataset.status === status));
  reported(queue.show({ status }));
}

function showHeader() {
  const counts = queue.counts();
  if (!counts) return;
  const total = Object.values(counts).reduce((sum, each) => sum + each, 0);
  for (const each of $("filters").children) {
    const count = each.dataset.status ? counts[each.dataset.status] : total;
    setText(each.lastChild, count.toLocaleString("en"));
    each.classList.toggle("is-zero", !count);
  }
  $("pause-all").classList.toggle("is-off", !counts.queued && !counts.processing);
  $("resume-all").disabled = !counts.paused;
  document.title = counts.processing ? `(${counts.processing + counts.queued}) ComfyRelay` : "ComfyRelay";
}

const TRYING = {
  examples:
    "No ComfyUI has been found yet. The examples run on a built-in stand-in, which makes real files, but runs no models; everything else waits until ComfyUI is there. Is it elsewhere? comfyrelay up --comfyui-url URL. To try out everything: comfyrelay up --stand-in.",
  everything:
    "You are trying things out: what you add runs on a built-in stand-in, which makes real files, but runs no models. To use ComfyUI, run comfyrelay up without --stand-in, or name it: comfyrelay up --comfyui-url URL.",
};

function showTrying() {
  const text = TRYING[desk.trying_out];
  $("stand-in").hidden = !text || sessionStorage.getItem(HIDDEN_HINT) !== null;
  setText($("stand-in-text"), text ?? "");
}

/** Once a ComfyUI has come, nothing is tried out by itself any more. */
async function lookForComfyui() {
  if (desk?.trying_out !== "examples" || queue.comfyuiAway().length) return;
  desk = await get("/api/desk");
  showTrying();
}

const MACHINE = {
  idle: ["Ready", "good"],
  busy: ["Working", "busy"],
  draining: ["Finishing, then shutting down", "warn"],
  offline: ["The worker is not responding", "bad"],
  revoked: ["The worker is not allowed to connect", "bad"],
};

const bare = (url) => url.replace(/^https?:\/\//, "");

function showMachine(isReached) {
  const worker = queue.worker();
  const away = queue.comfyuiAway();
  const isDeaf = away.length > 0 && away.length === desk?.comfyui.length;
  const [words, kind] = !isReached
    ? ["ComfyRelay is not responding", "bad"]
    : isDeaf
      ? [away.join(" "), "bad"]
      : worker
        ? (MACHINE[worker.state] ?? [worker.state, "warn"])
        : ["Starting…", "warn"];
  const isAllTried = desk?.trying_out === "everything";
  const where = !desk ? "" : isAllTried ? "stand-in" : isDeaf ? (desk.trying_out === "examples" ? "examples run on the stand-in" : "") : `ComfyUI at ${desk.comfyui.map(bare).join(", ")}`;
  // one of several is missed, although the others work
  const missed = isReached && !isDeaf ? away : [];
  $("machine").dataset.kind = missed.length && kind !== "bad" ? "warn" : kind;
  setText($("machine-text"), [words, where, ...missed].filter(Boolean).join(" · "));
}

// ------------------------------------------------------------------------------------------------ clock

let isRefreshing = false;
let wasReached = true;

async function refreshAll(force = false) {
  if (isRefreshing) return;
  isRefreshing = true;
  try {
    await queue.refresh({ force });
    if (!wasReached) toast("Reconnected.");
    wasReached = true;
  } catch (problem) {
    // shown once, not every second
    if (wasReached || problem.status) toast(problem.message, "error");
    wasReached = problem.status !== 0;
  } finally {
    isRefreshing = false;
  }
  if (wasReached) await lookForComfyui().catch(() => {});
  showMachine(wasReached);
  showHeader();
}

const reported = (promise) => promise?.catch?.((problem) => toast(problem.message, "error"));

/** Near the end of the list, the next page is fetched. */
function reachOn() {
  if ($("more").textContent && $("more").getBoundingClientRect().top < innerHeight + 600) reported(queue.loadMore());
}

async function tick() {
  if (document.hidden) return;
  await refreshAll();
  reachOn();
  const unit = pane.openUnit();
  if (wasReached && unit && unit.wantsClock()) await reported(pane.refresh());
}

// ------------------------------------------------------------------------------------------------ address

function followAddress() {
  const [, kind, id] = /^#(job|batch)\/([\w-]+)$/.exec(location.hash) ?? [];
  const before = pane.openUnit()?.id;
  queue.select(id ?? null);
  reported(pane.show(kind ?? null, id ?? null));
  if (!id && before) document.querySelector(`.row[data-id="${CSS.escape(before)}"] .name`)?.focus({ preventScroll: true });
}

// ------------------------------------------------------------------------------------------------ keys

const KEYS = {
  "/": () => $("search").focus(),
  j: () => queue.step(1),
  k: () => queue.step(-1),
  n: () => reported(adding.open()),
  x: () => act("cancel"),
  r: () => act("retry"),
  Escape: () => (location.hash = ""),
};

function act(verb) {
  const row = queue.focused();
  if (row) doVerb(verb, row.unit);
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const isTyping = event.target.closest("input, textarea, select");
  if (isTyping) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const does = KEYS[event.key];
  if (!does) return;
  event.preventDefault();
  does();
}

// ------------------------------------------------------------------------------------------------ dropping

function makeDropping() {
  let depth = 0;
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  const done = () => {
    depth = 0;
    $("dropping").hidden = true;
  };
  addEventListener("dragenter", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    depth += 1;
    // inside the dialog, which is above all else
    ($("adding").open ? $("adding") : document.body).append($("dropping"));
    $("dropping").hidden = false;
  });
  addEventListener("dragover", (event) => hasFiles(event) && event.preventDefault());
  addEventListener("dragleave", () => {
    depth -= 1;
    if (depth <= 0) done();
  });
  addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    done();
    reported(adding.take([...event.dataTransfer.files]));
  });
  addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (files.length) reported(adding.take(files));
  });
}

// ------------------------------------------------------------------------------------------------ start

function makeHeader() {
  makeFilters();
  let typing = null;
  $("search").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => reported(queue.show({ search: $("search").value.trim() })), 200);
  });
  $("add").addEventListener("click", () => reported(adding.open()));
  $("resume-all").addEventListener("click", resumeAll);
  for (const each of $("pause-all").querySelectorAll("button")) {
    each.addEventListener("click", () => {
      $("pause-all").open = false;
      pauseAll(each.dataset.mode);
    });
  }
  addEventListener("click", (event) => {
    if (!$("pause-all").contains(event.target)) $("pause-all").open = false;
  });
  // what is beside the list stays below the header, however high that is
  new ResizeObserver(() => document.body.style.setProperty("--top", `${document.querySelector(".top").offsetHeight + 16}px`)).observe(
    document.querySelector(".top"),
  );
  $("stand-in-close").addEventListener("click", () => {
    sessionStorage.setItem(HIDDEN_HINT, "1");
    $("stand-in").hidden = true;
  });
}

async function begin() {
  makeHeader();
  makeDropping();
  adding.start();
  addEventListener("keydown", onKey);
  addEventListener("hashchange", followAddress);
  onChange(() => {
    refreshAll(true);
    reported(pane.refresh());
  });
  addEventListener("scroll", reachOn, { passive: true });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) pane.sleep();
    else {
      tick();
      reported(pane.refresh());
    }
  });
  try {
    const [found, choices] = await Promise.all([get("/api/desk"), adding.load()]);
    desk = found;
    showTrying();
    const starters = choices.filter((each) => each.properties.some((prop) => prop.is_primary_input && prop.type === "image"));
    $("starters").append(
      ...starters.slice(0, 2).map((each) => h("button", { type: "button", onclick: () => adding.trySample(each) }, `${each.name} (sample image)`)),
      h("button", { type: "button", onclick: () => reported(adding.open()) }, "Something else…"),
    );
  } catch (problem) {
    toast(problem.message, "error");
  }
  await refreshAll(true);
  followAddress();
  setInterval(tick, EVERY_MS);
}

begin();
