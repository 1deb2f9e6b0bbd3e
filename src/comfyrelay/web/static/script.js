// The user's own script: its command, checked by the desk and shown argument by argument before it is run.

import { get, post } from "./api.js";
import { h, setText } from "./dom.js";

const PAUSE_MS = 400;

/** An argument list as it is: each argument in a frame of its own, an option and its value on one line. */
export function shownArgv(argv) {
  const lines = [];
  for (const each of argv) {
    if (!lines.length || each.startsWith("--")) lines.push([each]);
    else lines.at(-1).push(each);
  }
  return h("ol", { class: "argv", "aria-label": "Arguments" }, lines.map((line) => h("li", {}, line.map((each) => h("code", {}, each)))));
}

/** What to say beside the fields of a script, as it is configured. */
export async function hintsOf() {
  const script = await get("/api/desk/script");
  const options = Object.keys(script.extra_options);
  return {
    input_subdir: `A folder inside ${script.input_folder}. Leave empty to use that folder itself.`,
    template: `A workflow in ${script.template_folder}.`,
    tries: "Runs per input.",
    extra_args: options.length ? `Allowed: ${options.join(", ")}.` : "No extra options are allowed.",
  };
}

/** The values of a form as the preview takes them: what was not filled in is left out. */
const valuesOf = (fields) =>
  Object.fromEntries(
    fields
      .map((each) => [each.key, each.lines()?.[0] ?? each.value()])
      .filter(([key, value]) => value !== undefined && (value !== "" || ["positive", "input_subdir", "template"].includes(key))),
  );

export class Command {
  constructor(fields, onChange) {
    Object.assign(this, { fields, onChange, askedFor: null, shownFor: null, waiting: null });
    this.note = h("p", { class: "hint", role: "status" });
    this.place = h("div", {});
    this.node = h("section", { class: "field command" }, h("span", { class: "label" }, "Command"), this.place, this.note);
    this.preview().catch(() => {});
  }

  /** Whether what would be run is in view, argument by argument. */
  get isSeen() {
    const frame = this.node.closest(".dialog-body").getBoundingClientRect();
    const place = this.place.getBoundingClientRect();
    return this.shownFor === this.present && place.bottom <= frame.bottom + 1 && place.bottom > frame.top;
  }

  get present() {
    return JSON.stringify(valuesOf(this.fields));
  }

  /** The form has changed: ask once it rests. */
  changed() {
    clearTimeout(this.waiting);
    if (this.askedFor === this.present) return;
    this.waiting = setTimeout(() => this.preview().catch(() => {}), PAUSE_MS);
  }

  /** Bring it into view, for what the form says now. */
  async reveal() {
    if (this.shownFor !== this.present) await this.preview();
    this.node.scrollIntoView({ block: "end" });
    this.onChange();
  }

  /** Show the command for what the form says now; throws the problem that the desk has with it. */
  async preview() {
    clearTimeout(this.waiting);
    const wanted = (this.askedFor = this.present);
    try {
      const { data } = await post("/api/desk/script/preview", valuesOf(this.fields));
      // it may have changed meanwhile
      if (wanted !== this.present) return;
      this.shownFor = wanted;
      this.place.replaceChildren(shownArgv(data.argv));
      const more = this.fields.flatMap((each) => each.lines() ?? []).length - 1;
      setText(this.note, more > 0 ? `Plus ${more} more, one for each prompt.` : "");
    } catch (problem) {
      this.shownFor = null;
      this.place.replaceChildren();
      setText(this.note, Object.entries(problem.errors ?? {}).map(([key, why]) => `${key}: ${why}`).join(" ") || problem.message);
      throw problem;
    } finally {
      this.onChange();
    }
  }
}
