// One input of a form, made of a property: its type, its range, its choices.

import { typeOf } from "./api.js";
import { h } from "./dom.js";
import { many, size } from "./words.js";

const FILES = new Set(["image", "video", "audio"]);
let last = 0;

export class Field {
  constructor(property, onChange, hint = "") {
    this.property = property;
    this.hint = hint;
    this.onChange = onChange;
    this.key = property.key;
    this.isFile = FILES.has(property.type);
    this.isPrimary = property.is_primary_input;
    this.isRequired = property.required;
    this.isSeed = property.type === "number" && property.role === "seed";
    this.isPrompt = property.type === "text" && property.role === "prompt";
    this.files = [];
    this.id = `field-${(last += 1)}`;
    this.note = h("p", { class: "field-error", id: `${this.id}-error`, hidden: true });
    this.node = h("div", { class: `field ${property.type}`, dataset: { key: this.key } }, this.made(), this.hintNode(), this.note);
    this.first = this.isFile ? null : this.value();
  }

  made() {
    const { property } = this;
    if (this.isFile) return this.fileInput();
    if (property.type === "boolean") return this.checkbox();
    const name = h("label", { for: this.id }, property.label, this.isRequired ? "" : null);
    if (property.type === "choice") return [name, this.choice()];
    if (property.type === "number") return [name, this.number()];
    return [name, this.text()];
  }

  text() {
    const text = String(this.property.default_value ?? "");
    const isLong = this.isPrompt || this.property.role === "negative_prompt" || /prompt/.test(this.key) || text.length > 60 || text.includes("\n");
    this.input = isLong ? h("textarea", { id: this.id, rows: 3 }) : h("input", { id: this.id, type: "text" });
    this.input.value = text;
    this.listen();
    if (!this.isPrompt) return this.input;
    this.byLine = h("input", { type: "checkbox", onchange: this.onChange });
    return h("div", {}, this.input, h("label", { class: "check" }, this.byLine, "One prompt per line, one job each"));
  }

  number() {
    const { default_value: value, is_whole: isWhole } = this.property;
    // a text field, since a number field rounds seeds of 64 bits
    this.input = h("input", { id: this.id, type: "text", inputmode: isWhole ? "numeric" : "decimal", autocomplete: "off" });
    // a seed that is not given is drawn anew for each run
    this.input.value = value === null || value === undefined || this.isSeed ? "" : String(value);
    if (this.isSeed) this.input.placeholder = "A new one for each run";
    this.input.addEventListener("keydown", (event) => this.nudge(event));
    this.listen();
    const dice = this.isSeed ? h("button", { type: "button", onclick: () => this.set(this.randomSeed()) }, "Random") : null;
    return h("div", { class: "with-button" }, this.input, dice);
  }

  /** The arrow keys go by the steps of the node. */
  nudge(event) {
    const { step, minimum, maximum } = this.property;
    const value = this.value();
    if (!step || !["ArrowUp", "ArrowDown"].includes(event.key) || typeof value !== "number" || Number.isNaN(value)) return;
    event.preventDefault();
    const next = value + (event.key === "ArrowUp" ? step : -step);
    this.set(Number(Math.min(maximum ?? Infinity, Math.max(minimum ?? -Infinity, next)).toFixed(10)));
  }

  /** What follows another value keeps its part of it until somebody sets it, as `resolve` of the server has it. */
  follow(fields) {
    const source = fields.find((each) => each.key === this.property.scaled_from);
    const now = source?.value();
    if (typeof now !== "number" || Number.isNaN(now) || this.value() !== this.first) return;
    const { default_value: value, is_whole: isWhole, minimum, maximum } = this.property;
    const scaled = (value * now) / source.property.default_value;
    const part = Math.min(maximum ?? Infinity, Math.max(minimum ?? -Infinity, isWhole ? Math.max(1, Math.floor(scaled + 0.5)) : scaled));
    this.input.value = String(part);
    this.first = part;
  }

  /** What may be given here, below it. */
  hintNode() {
    const { minimum, maximum } = this.property;
    const from = minimum === null || minimum === undefined ? null : short(minimum);
    const to = maximum === null || maximum === undefined ? null : short(maximum);
    const range = from !== null && to !== null ? `${from} to ${to}` : from !== null ? `at least ${from}` : to !== null ? `at most ${to}` : "";
    const text = [this.hint, range].filter(Boolean).join(" ");
    if (!text) return null;
    this.input.setAttribute("aria-describedby", `${this.id}-hint`);
    return h("p", { class: "hint", id: `${this.id}-hint` }, text);
  }

  /** A random seed, below what JavaScript counts exactly and what the node takes. */
  randomSeed() {
    const { maximum } = this.property;
    return Math.floor(Math.random() * Math.min(Number.MAX_SAFE_INTEGER, Number(maximum ?? Infinity)));
  }

  choice() {
    const { choices, default_value: value } = this.property;
    this.input = h("select", { id: this.id, onchange: this.onChange }, choices.map((each, place) => h("option", { value: place }, String(each))));
    this.input.selectedIndex = Math.max(0, choices.indexOf(value));
    return this.input;
  }

  checkbox() {
    this.input = h("input", { id: this.id, type: "checkbox", checked: this.property.default_value === true, onchange: this.onChange });
    return h("label", { class: "check" }, this.input, this.property.label);
  }

  fileInput() {
    const { type } = this.property;
    this.input = h("input", {
      id: this.id,
      type: "file",
      class: "for-readers",
      accept: `${type}/*`,
      multiple: this.isPrimary,
      onchange: () => {
        this.add([...this.input.files]);
        this.input.value = "";
      },
    });
    this.list = h("ul", { class: "files" });
    const what = this.isPrimary ? `Choose or drop ${type === "audio" ? "audio files" : `${type}s`}` : `Choose or drop ${type === "audio" ? "an audio file" : `a${type === "image" ? "n" : ""} ${type}`}`;
    const zone = h("label", { class: "zone", for: this.id }, h("strong", {}, what), this.isPrimary ? h("span", { class: "hint" }, "Several files make a batch.") : null);
    return [h("span", { class: "label" }, this.property.label, this.isRequired ? null : h("span", { class: "hint" }, " (optional)")), this.input, zone, this.list];
  }

  listen() {
    this.input.addEventListener("input", () => {
      this.complain(null);
      this.onChange();
    });
  }

  takes(file) {
    return typeOf(file).startsWith(`${this.property.type}/`);
  }

  add(files) {
    this.files = this.isPrimary ? [...this.files, ...files] : files.slice(-1);
    this.complain(null);
    this.showFiles();
    this.onChange();
  }

  showFiles() {
    for (const each of this.list.querySelectorAll("img")) URL.revokeObjectURL(each.src);
    const shown = this.files.slice(0, 50).map((file) =>
      h(
        "li",
        {},
        this.property.type === "image" ? h("img", { src: URL.createObjectURL(file), alt: "" }) : null,
        h("span", { class: "filename" }, file.name),
        h("span", { class: "hint" }, size(file.size)),
        h("button", { type: "button", class: "quiet", "aria-label": `Remove ${file.name}`, onclick: () => this.drop(file) }, "✕"),
      ),
    );
    const more = this.files.length - shown.length;
    this.list.replaceChildren(...shown, ...(more > 0 ? [h("li", {}, `and ${many(more, "more file")}`)] : []));
  }

  drop(file) {
    this.files = this.files.filter((each) => each !== file);
    this.showFiles();
    this.onChange();
    this.input.focus();
  }

  /** The prompts, when each line is one. */
  lines() {
    if (!this.byLine?.checked) return null;
    const found = this.input.value.split("\n").map((each) => each.trim()).filter(Boolean);
    return found.length ? found : null;
  }

  value() {
    const { type, choices } = this.property;
    if (type === "boolean") return this.input.checked;
    if (type === "choice") return choices[this.input.selectedIndex];
    if (type !== "number") return this.input.value;
    const text = this.input.value.trim();
    if (!text) return undefined;
    return /^-?\d+$/.test(text) && !Number.isSafeInteger(Number(text)) ? BigInt(text) : Number(text);
  }

  /** What was not touched is not sent: the server knows its defaults, and exactly. */
  isChanged() {
    const value = this.value();
    return value !== undefined && (value !== this.first || (this.property.default_value ?? null) === null) && !(value === "" && !this.first);
  }

  set(value) {
    const { type, choices } = this.property;
    if (type === "boolean") this.input.checked = value === true;
    else if (type === "choice") this.input.selectedIndex = Math.max(0, choices.indexOf(value));
    else this.input.value = String(value);
    this.complain(null);
    this.onChange();
  }

  /** Whether it could have this value. */
  fits(value) {
    const { type, choices, minimum, maximum, is_whole: isWhole } = this.property;
    if (type === "choice") return choices.includes(value);
    if (type !== "number") return typeof value === (type === "boolean" ? "boolean" : "string");
    if (isWhole && typeof value === "number" && !Number.isInteger(value)) return false;
    return ["number", "bigint"].includes(typeof value) && value >= (minimum ?? -Infinity) && value <= (maximum ?? Infinity);
  }

  wrong() {
    if (this.isFile) return this.isRequired && !this.files.length ? "This is required." : null;
    const value = this.value();
    const { type, minimum, maximum } = this.property;
    if (this.isRequired && (value === undefined || value === "")) return "This is required.";
    if (type !== "number" || value === undefined) return null;
    if (Number.isNaN(value)) return "This must be a number.";
    if (this.property.is_whole && typeof value === "number" && !Number.isInteger(value)) return "This must be a whole number.";
    // what was not touched may be out of range: that is the graph's own affair
    if (!this.isChanged()) return null;
    if (minimum !== null && minimum !== undefined && value < minimum) return `This must be at least ${short(minimum)}.`;
    if (maximum !== null && maximum !== undefined && value > maximum) return `This must be at most ${short(maximum)}.`;
    return null;
  }

  complain(text) {
    this.note.hidden = !text;
    this.note.textContent = text ?? "";
    this.node.classList.toggle("is-wrong", Boolean(text));
    if (text) {
      this.input.setAttribute("aria-invalid", "true");
      this.input.setAttribute("aria-errormessage", this.note.id);
      this.node.closest("details")?.setAttribute("open", "");
    } else this.input?.removeAttribute("aria-invalid");
  }

  focus() {
    this.input.focus();
    this.node.scrollIntoView({ block: "nearest" });
  }
}

/** Whole numbers with all their digits; what no float tells apart is shortened. */
const short = (value) => (typeof value === "number" && Math.abs(value) >= 1e15 ? value.toExponential(1) : String(value));
