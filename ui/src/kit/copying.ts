// Taking a text elsewhere. Over plain HTTP, as in a network of one's own, browsers have no clipboard for pages: there it
// is selected and copied as somebody would by hand.

import { common } from "@/texts/common";
import { toast } from "./Toast";

/** Whether it was copied. */
export async function copied(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copiedBySelection(text);
  }
}

function copiedBySelection(text: string): boolean {
  const selection = getSelection();
  if (!selection) return false;
  const before = selection.rangeCount ? selection.getRangeAt(0) : null;
  const place = document.createElement("span");
  place.className = "visually-hidden";
  place.style.whiteSpace = "pre";
  place.textContent = text;
  // beside what was pressed: a dialog takes the selection from what is outside of it
  (document.activeElement?.parentElement ?? document.body).append(place);
  // exactly this, whatever a browser makes of the selection
  const give = (event: ClipboardEvent) => {
    event.clipboardData?.setData("text/plain", text);
    event.preventDefault();
  };
  document.addEventListener("copy", give, { capture: true, once: true });
  try {
    selection.removeAllRanges();
    const range = document.createRange();
    range.selectNodeContents(place);
    selection.addRange(range);
    return document.execCommand("copy");
  } catch {
    return false;
  } finally {
    document.removeEventListener("copy", give, { capture: true });
    selection.removeAllRanges();
    if (before) selection.addRange(before);
    place.remove();
  }
}

/** Copies, and says whether that worked. */
export async function copy(text: string): Promise<void> {
  if (await copied(text)) toast({ text: common.copied, tone: "good" });
  else toast({ text: common.notCopied, tone: "bad" });
}
