// Small helpers. Nothing here, or anywhere on the page, turns text into HTML: what users type stays text.

export const $ = (id) => document.getElementById(id);

/** An element: h("p", {class: "x", onclick: f}, "text", child, null). */
export function h(tag, props = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "dataset") Object.assign(made.dataset, value);
    else if (name === "value" || name === "checked" || name === "muted") made[name] = value;
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false));
  return made;
}

/** Write only what changed, so that nothing flickers and no selection is lost. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Put `wanted` into `parent` in this order, moving as little as possible. */
export function reorder(parent, wanted) {
  const kept = new Set(wanted);
  for (const each of [...parent.children]) if (!kept.has(each)) each.remove();
  wanted.forEach((each, place) => {
    if (parent.children[place] !== each) parent.insertBefore(each, parent.children[place] ?? null);
  });
}

export function toast(text, kind = "info") {
  const shown = h(
    "div",
    { class: `toast ${kind}`, role: kind === "error" ? "alert" : null },
    h("span", {}, text),
    h("button", { type: "button", class: "quiet", "aria-label": "Close", onclick: () => shown.remove() }, "✕"),
  );
  $("toasts").append(shown);
  while ($("toasts").children.length > 4) $("toasts").firstChild.remove();
  setTimeout(() => shown.remove(), kind === "error" ? 12000 : 4000);
}

/** What is outside of an open dialog is behind it and cannot be reached, so messages are in the topmost one. */
const placeToasts = () => ([...document.querySelectorAll("dialog[open]")].at(-1) ?? document.body).append($("toasts"));
document.addEventListener("close", placeToasts, true);

export function openDialog(dialog) {
  if (!dialog.open) dialog.showModal();
  placeToasts();
}

/** Say something that is to be read before one goes on. */
export const tell = (text) => choice(text, { yes: "", no: "Close" });

/** Ask before something that cannot be undone. */
export const ask = async (text, yes) => (await choice(text, { yes })) === "yes";

/** Which of two is wanted: "yes", "other", or "no" for neither. */
export function choice(text, { yes, other = "", no = "Keep" }) {
  const dialog = $("asking");
  setText($("asking-text"), text);
  setText($("asking-yes"), yes);
  setText($("asking-other"), other);
  setText($("asking-no"), no);
  $("asking-other").hidden = !other;
  $("asking-yes").hidden = !yes;
  $("asking-yes").classList.toggle("danger", !other);
  dialog.returnValue = "no";
  openDialog(dialog);
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true });
  });
}
