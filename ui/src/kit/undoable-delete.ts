// Deletes with undo: items are hidden at once, and deleted when the undo message closes. Closing the page closes the
// message.

import { Store, useStore } from "@/lib/store";
import { common } from "@/texts/common";
import { closeToast, shownToasts, toast } from "./Toast";

/** A closing page can send 64 KiB, and the request for one batch takes about 200 bytes. */
const MAX_SENT_ON_LEAVING = 300;
const hidden = new Store<ReadonlySet<string>>(new Set());

/** Ids of items that are about to be deleted. Lists leave them out. */
export const usePendingDeletes = (): ReadonlySet<string> => useStore(hidden);

/** Hides the items and calls `send` when the message closes, unless the user undoes it. Shows them again if it fails.
 * `send` starts all its requests at once, because a closing page cannot wait for the first one. */
export function deleteWithUndo(ids: readonly string[], text: string, send: () => Promise<unknown>): void {
  hidden.set(new Set([...hidden.get(), ...ids]));
  const show = () => hidden.set(new Set([...hidden.get()].filter((each) => !ids.includes(each))));
  toast({ text, action: { name: common.undo, run: show }, onClose: () => void send().finally(show) });
}

addEventListener("pagehide", () => {
  for (const { id, onClose } of shownToasts()) if (onClose) closeToast(id);
});

// the browser asks whether to leave the page
addEventListener("beforeunload", (event) => {
  if (hidden.get().size > MAX_SENT_ON_LEAVING) event.preventDefault();
});
