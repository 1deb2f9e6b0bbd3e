// Over plain HTTP, as in a local network, pages cannot use the clipboard API. Then the text is selected and copied the
// way a user would do it.

import { common } from "@/texts/common";
import { toast } from "./Toast";

/** Copies a text and returns whether that worked. */
export async function writeClipboard(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

function copyBySelection(text: string): boolean {
  const selection = getSelection();
  if (!selection) return false;
  const before = selection.rangeCount ? selection.getRangeAt(0) : null;
  const element = document.createElement("span");
  element.className = "visually-hidden";
  element.style.whiteSpace = "pre";
  element.textContent = text;
  // next to the pressed button: a dialog clears selections outside of it
  (document.activeElement?.parentElement ?? document.body).append(element);
  // browsers may reformat a selection, so set the exact text
  const setText = (event: ClipboardEvent) => {
    event.clipboardData?.setData("text/plain", text);
    event.preventDefault();
  };
  document.addEventListener("copy", setText, { capture: true, once: true });
  try {
    selection.removeAllRanges();
    const range = document.createRange();
    range.selectNodeContents(element);
    selection.addRange(range);
    return document.execCommand("copy");
  } catch {
    return false;
  } finally {
    document.removeEventListener("copy", setText, { capture: true });
    selection.removeAllRanges();
    if (before) selection.addRange(before);
    element.remove();
  }
}

/** Copies a text and shows a message with the result. */
export async function copyText(text: string): Promise<void> {
  if (await writeClipboard(text)) toast({ text: common.copied, tone: "good" });
  else toast({ text: common.notCopied, tone: "bad" });
}
