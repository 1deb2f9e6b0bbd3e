// Shows the whole text on hover where a text is cut with an ellipsis.

const titled = new WeakSet<Element>();

function isCut(element: HTMLElement): boolean {
  const { textOverflow, webkitLineClamp } = getComputedStyle(element);
  if (webkitLineClamp && webkitLineClamp !== "none") return element.scrollHeight > element.clientHeight;
  return textOverflow === "ellipsis" && element.scrollWidth > element.clientWidth;
}

/** Sets the title of a cut text under the pointer. Other titles stay. */
export function titleCutText({ target }: Event): void {
  for (let element = target; element instanceof HTMLElement; element = element.parentElement) {
    if (element.title && !titled.has(element)) return;
    if (isCut(element)) {
      element.title = element.textContent ?? "";
      titled.add(element);
      return;
    }
    // it fits now
    if (titled.delete(element)) element.removeAttribute("title");
  }
}
