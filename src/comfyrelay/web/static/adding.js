// Adding: choose what to run, fill in its form, and one job or a batch of them is made.

import { all, get, newKey, parse, post, remove, typeOf, upload } from "./api.js";
import { $, ask, choice, h, openDialog, setText, tell, toast } from "./dom.js";
import { Field } from "./fields.js";
import { knowEffects } from "./queue.js";
import { Command, hintsOf } from "./script.js";
import { notifyChange } from "./verbs.js";
import { many } from "./words.js";

const MOST_ITEMS = 10000;
const MOST_SEEN = 6;
const LABEL_LENGTH = 60;

let choices = []; // what can be run: {value, name, target, properties}
let chosen = null;
let fields = [];
let presets = [];
let scriptSlug = null; // of the workflow that runs the user's own script
let command = null; // of that script, while it is what is chosen
let anyway = false; // whether what no worker has may be waited for
const tries = h("input", { type: "number", id: "adding-tries", min: 1, max: 1000, step: 1, value: "1" });

export async function load() {
  const [desk, effects, workflows] = await Promise.all([get("/api/desk"), all("/api/effects"), all("/api/workflows")]);
  knowEffects(effects);
  scriptSlug = desk.script_workflow;
  const hints = scriptSlug === null ? {} : await hintsOf();
  choices = [
    ...effects.map((each) => ({ value: `effect:${each.id}`, group: "Effects", name: each.name, target: { effect_id: each.id }, properties: each.properties })),
    ...workflows.map((each) => ({ value: `workflow:${each.slug}`, group: "Your workflows", name: each.name, target: { workflow_slug: each.slug }, properties: each.properties, hints: each.slug === scriptSlug ? hints : {} })),
  ];
  const groups = [...new Set(choices.map((each) => each.group))];
  $("adding-what").replaceChildren(
    ...groups.map((group) =>
      h("optgroup", { label: group }, choices.filter((each) => each.group === group).map((each) => h("option", { value: each.value }, each.name))),
    ),
  );
  return choices;
}

/** Open the form: with something chosen, with files put in. */
export async function open({ value = null, files = [] } = {}) {
  if (!$("adding").open) {
    problem(null);
    // first, so that nothing that was typed meanwhile is lost when the form is made
    await Promise.all([load(), loadPresets()]);
    openDialog($("adding"));
  }
  choose(value ?? fitting(files) ?? chosen?.value ?? choices[0]?.value);
  if (files.length) put(files);
}

/** The first that takes such a file as its input. */
function fitting(files) {
  if (!files.length) return null;
  const takes = (each) => each?.properties.some((prop) => prop.is_primary_input && typeOf(files[0]).startsWith(`${prop.type}/`));
  const present = choices.find((each) => each.value === chosen?.value);
  return (takes(present) ? present : choices.find(takes))?.value ?? null;
}

function put(files) {
  const field = fields.find((each) => each.isFile && files.some((file) => each.takes(file)));
  if (field) field.add(files.filter((file) => field.takes(file)));
  else problem("This workflow does not take this kind of file.");
  sum();
}

function choose(value) {
  chosen = choices.find((each) => each.value === value) ?? choices[0] ?? null;
  if (!chosen) return;
  $("adding-what").value = chosen.value;
  command = null;
  anyway = false;
  fields = chosen.properties.map((each) => new Field(each, changed, chosen.hints?.[each.key]));
  const isScript = scriptSlug !== null && chosen.target.workflow_slug === scriptSlug;
  // what must be given, and what people change most, is seen at once; of several seeds the first
  const firstSeed = fields.find((each) => each.isSeed);
  const hasRole = (field) => field.property.role !== null && (!field.isSeed || field === firstSeed);
  const isSeen = (field, place) => isScript || field.isRequired || hasRole(field) || (place < MOST_SEEN && field.property.group === null);
  const rest = fields.filter((field, place) => !isSeen(field, place));
  const hasSeed = firstSeed !== undefined;
  tries.value = "1";
  $("adding-fields").replaceChildren(
    ...fields.filter(isSeen).map((each) => each.node),
    ...(hasSeed
      ? [h("div", { class: "field" }, h("label", { for: tries.id }, "Tries"), tries, h("p", { class: "hint" }, "Each extra try gets a random seed."))]
      : []),
    ...(rest.length ? [h("details", { class: "rest" }, h("summary", {}, `${many(rest.length, "more setting")}`), ...byNode(rest))] : []),
  );
  if (isScript) {
    command = new Command(fields, sum);
    $("adding-fields").append(command.node);
  }
  showPresets();
  sum();
}

/** Fields under the names of the nodes that they belong to. */
function byNode(rest) {
  const groups = new Map();
  for (const each of rest) {
    const group = each.property.group ?? "";
    groups.set(group, [...(groups.get(group) ?? []), each.node]);
  }
  return [...groups].flatMap(([group, nodes]) => [group ? h("h3", {}, group) : null, ...nodes]).filter(Boolean);
}

// ------------------------------------------------------------------------------------------------ presets

async function loadPresets() {
  presets = await all("/api/presets");
}

/** The saved values that mean something here, each to be put in with one click. */
function showPresets() {
  const useful = presets.filter((each) => fields.some((field) => meant(each, field) !== null));
  const node = $("adding-preset");
  node.hidden = !fields.some((each) => !each.isFile);
  node.replaceChildren(
    h("span", { class: "label" }, "Presets"),
    h(
      "div",
      { class: "chips" },
      useful.map((each) =>
        h(
          "span",
          { class: "chip-pair" },
          h("button", { type: "button", class: "chip", onclick: () => apply(each) }, each.name),
          h("button", { type: "button", class: "chip quiet", "aria-label": `Delete preset ${each.name}`, onclick: () => forget(each) }, "✕"),
        ),
      ),
      h("button", { type: "button", class: "chip quiet", onclick: nameIt }, "Save preset…"),
    ),
  );
}

/** Under which key a preset has a value for a field: its own, or its role (`steps` is for every sampler). */
function meant(preset, field) {
  if (field.isFile) return null;
  const key = field.key in preset.values ? field.key : field.property.role;
  return key !== null && key in preset.values && field.fits(preset.values[key]) ? key : null;
}

function apply(preset) {
  for (const field of fields) {
    const key = meant(preset, field);
    if (key !== null) field.set(preset.values[key]);
  }
  const ignored = Object.keys(preset.values).filter((key) => !fields.some((field) => meant(preset, field) === key));
  if (ignored.length) toast(`Not used by this workflow: ${ignored.join(", ")}.`);
  sum();
}

function nameIt() {
  const name = h("input", { type: "text", maxlength: 200, "aria-label": "Preset name", placeholder: "Name" });
  const save = async () => {
    if (!name.value.trim()) return name.focus();
    const values = Object.fromEntries(fields.filter((each) => !each.isFile).map((each) => [each.key, each.value()]).filter(([, value]) => value !== undefined));
    await tried(async () => {
      await post("/api/presets", { name: name.value.trim(), values });
      await loadPresets();
      showPresets();
    });
  };
  name.addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      event.preventDefault();
      save();
    }
  });
  $("adding-preset").lastChild.replaceChildren(name, h("button", { type: "button", onclick: save }, "Save"), h("button", { type: "button", class: "quiet", onclick: showPresets }, "Cancel"));
  name.focus();
}

async function forget(preset) {
  if (!(await ask(`Delete the preset “${preset.name}”? This cannot be undone.`, "Delete"))) return;
  await tried(async () => {
    await remove(`/api/presets/${preset.id}`);
    await loadPresets();
    showPresets();
  });
  // the button that was pressed is gone
  $("adding-preset").querySelector("button").focus();
}

// ------------------------------------------------------------------------------------------------ making

/** What the form stands for: every file with every prompt, each as often as it is to be tried. */
function plan() {
  const primary = fields.find((each) => each.isPrimary);
  const files = primary?.files.length ? primary.files : [null];
  const many = fields.find((each) => each.lines() !== null);
  const prompts = many ? many.lines() : [null];
  const seeds = fields.filter((each) => each.isSeed);
  const times = seeds.length ? Math.min(1000, Math.max(1, Math.round(Number(tries.value)) || 1)) : 1;
  const items = [];
  for (const file of files)
    for (const prompt of prompts)
      for (let number = 0; number < times; number += 1) items.push({ file, prompt, number });
  return { items, files: primary?.files ?? [], prompts: many ? prompts : [], times, manyKey: many?.key, seedKeys: seeds.map((each) => each.key) };
}

function changed() {
  anyway = false;
  sum();
}

function sum() {
  for (const each of fields) each.follow(fields);
  const { items, files, prompts, times } = plan();
  const count = items.length;
  const parts = [files.length > 1 && many(files.length, "file"), prompts.length > 1 && many(prompts.length, "prompt"), times > 1 && many(times, "try", "tries")].filter(Boolean);
  setText($("adding-sum"), count > 1 ? `Batch: ${parts.join(" × ")} = ${many(count, "job")}` : "");
  const verb = command ? "Run" : "Add";
  const isUnseen = command && !command.isSeen;
  setText($("adding-submit"), isUnseen ? "Show command" : anyway ? "Add anyway" : count > 1 ? `${verb} ${many(count, "job")}` : command ? "Run job" : "Add job");
  command?.changed();
}

function problem(text) {
  $("adding-error").hidden = !text;
  setText($("adding-error"), text ?? "");
  if (text) $("adding-error").scrollIntoView({ block: "nearest" });
}

async function tried(work) {
  try {
    problem(null);
    return await work();
  } catch (error) {
    problem(error.message);
    anyway = error.kind === "missing_on_workers";
    for (const each of fields) each.complain(error.errors?.[each.key] ?? null);
    return null;
  }
}

async function submit(event) {
  event.preventDefault();
  if ($("adding-submit").disabled) return;
  for (const each of fields) each.complain(null);
  const wrong = fields.filter((each) => each.wrong());
  if (wrong.length) {
    for (const each of wrong) each.complain(each.wrong());
    wrong[0].focus();
    return;
  }
  $("adding-submit").disabled = true;
  // what is run was seen before
  const made = !command || command.isSeen ? await tried(make) : await tried(() => command.reveal());
  $("adding-submit").disabled = false;
  sum();
  if (!made) return;
  $("adding").close();
  notifyChange();
  location.hash = made;
}

async function make() {
  const { items, files, times, manyKey, seedKeys } = plan();
  if (items.length > MOST_ITEMS) throw new Error(`A batch has at most ${MOST_ITEMS} jobs; this would be ${items.length}.`);
  const ids = new Map();
  const payload = {};
  const others = fields.filter((each) => each.isFile && !each.isPrimary && each.files.length);
  let sent = 0;
  const send = async (file) => {
    sent += 1;
    setText($("adding-sum"), `Uploading ${file.name} (${sent} of ${files.length + others.length})…`);
    return upload(file);
  };
  for (const each of files) ids.set(each, await send(each));
  for (const each of others) payload[each.key] = await send(each.files[0]);
  for (const each of fields) if (!each.isFile && each.isChanged()) payload[each.key] = each.value();
  const bodies = items.map(({ file, prompt, number }) => ({
    input_payload: {
      ...payload,
      ...(prompt === null ? {} : { [manyKey]: prompt }),
      // one that is given is for the first try
      ...(number && seedKeys.some((key) => key in payload) ? Object.fromEntries(seedKeys.map((key) => [key, randomSeedOf(key)])) : {}),
    },
    ...(file ? { input_file_id: ids.get(file) } : {}),
    // one alone is named by the server
    ...(items.length > 1 ? { label: labelOf(file, prompt, times > 1 ? number + 1 : null) } : {}),
  }));
  const target = anyway ? { ...chosen.target, wait_for_missing: true } : chosen.target;
  if (bodies.length === 1) {
    const { data } = await post("/api/ai-jobs", { ...target, ...bodies[0], idempotency_key: newKey() });
    toast("Job added.");
    return `job/${data.id}`;
  }
  const { data } = await post("/api/batches", { ...target, items: bodies, label: chosen.name.slice(0, 200), idempotency_key: newKey() });
  toast(`Added ${many(bodies.length, "job")}.`);
  return `batch/${data.id}`;
}

const randomSeedOf = (key) => fields.find((each) => each.key === key).randomSeed();

/** The beginning of a text, cut between words. */
function excerpt(text) {
  const line = text.trim().replace(/\s+/g, " ");
  return line.length <= LABEL_LENGTH ? line : `${line.slice(0, LABEL_LENGTH).replace(/ \S*$/, "")}…`;
}

function labelOf(file, prompt, number) {
  const text = fields.find((each) => each.isPrompt);
  const words = [file?.name, excerpt(prompt ?? text?.value() ?? ""), number && `try ${number}`];
  return words.filter(Boolean).join(" · ").slice(0, 200) || undefined;
}

// ------------------------------------------------------------------------------------------------ graphs, files

/** A graph becomes a workflow of one's own, and its form is shown. */
export async function openGraph(file) {
  let graph;
  try {
    graph = parse(await file.text());
  } catch {
    return void tell(`${file.name} is not a JSON file. Save the workflow in ComfyUI, and drop that file.`);
  }
  if (graph === null || typeof graph !== "object" || Array.isArray(graph)) return void tell(`${file.name} is not a ComfyUI workflow.`);
  await addGraph(graph, file);
}

/** Whether it was added. If not, no form is opened: it would be that of something else. */
async function addGraph(graph, file) {
  const name = file.name.replace(/\.\w+$/, "").slice(0, 200) || "workflow";
  let added;
  try {
    added = await post("/api/workflows", { graph, name });
  } catch (error) {
    tell(`“${file.name}” was not added. ${error.message}`);
    return false;
  }
  const { data, message } = added;
  if ($("adding").open) await load();
  await open({ value: `workflow:${data.slug}` });
  problem(data.missing ? `${data.missing.text} You can add jobs anyway: they wait until a worker has it.` : null);
  fields[0]?.focus();
  toast(message === "Added." ? `“${name}” was added to your workflows.` : message);
  return true;
}

/** Whether what made a file is to be run again; then its form is shown, with the values that it had; of files it has only names. */
async function runsAgain(file) {
  const { graph } = await get(`/api/desk/files/${await upload(file)}/workflow`);
  if (!graph) return false;
  const text = `“${file.name}” carries the workflow that made it. Run this again, with the values that it had, or use the file as an input?`;
  const wanted = await choice(text, { yes: "Run this again", other: "Use as input", no: "Cancel" });
  if (wanted === "yes") {
    if (!(await addGraph(graph, file))) return true;
    // a seed that is not given would be drawn anew
    for (const each of fields) if (each.isSeed && each.property.default_value !== null) each.set(each.property.default_value);
    const lacking = fields.filter((each) => each.isFile && each.isRequired);
    for (const each of lacking) each.complain(`The file that it worked on is not in “${file.name}”: choose it.`);
    lacking[0]?.focus();
  }
  return wanted !== "other";
}

/** Files that were dropped or pasted, wherever that was. */
export async function take(files) {
  const graph = files.find((each) => each.name.toLowerCase().endsWith(".json"));
  if (graph) return openGraph(graph);
  const media = files.filter((each) => /^(image|video|audio)\//.test(typeOf(each)));
  if (!media.length) return toast("Drop a workflow (.json), images, videos or audio.", "error");
  // whoever fills in a form drops what it works on
  if (media.length === 1 && !$("adding").open && (await runsAgain(media[0]))) return;
  await open();
  choose(fitting(media) ?? chosen?.value);
  put(media);
}

/** The first job: an example with the sample image. */
export async function trySample(choice) {
  try {
    const picture = await (await fetch("/api/desk/sample")).blob();
    const id = await upload(new File([picture], "sample.png", { type: "image/png" }));
    const { data } = await post("/api/ai-jobs", { ...choice.target, input_file_id: id, idempotency_key: newKey() });
    notifyChange();
    location.hash = `job/${data.id}`;
  } catch (error) {
    toast(error.message, "error");
  }
}

export function start() {
  $("adding-form").addEventListener("submit", submit);
  $("adding-close").addEventListener("click", () => $("adding").close());
  $("adding-what").addEventListener("change", (event) => choose(event.target.value));
  tries.addEventListener("input", sum);
  // what a script would run may have come into view
  document.querySelector("#adding .dialog-body").addEventListener("scroll", () => command && sum(), { passive: true });
  $("adding-graph").addEventListener("change", (event) => {
    const [file] = event.target.files;
    event.target.value = "";
    if (file) openGraph(file);
  });
}
