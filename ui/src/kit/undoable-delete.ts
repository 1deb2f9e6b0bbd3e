// Deletes with undo: items are hidden at once, and deleted when the message about it closes. No request is sent before
// that, so closing the page cancels the delete.

import { Store, useStore } from "@/lib/store";
import { common } from "@/texts/common";
import { toast } from "./Toast";

const hidden = new Store<ReadonlySet<string>>(new Set());

/** Ids of items that are about to be deleted. Lists leave them out. */
export const usePendingDeletes = (): ReadonlySet<string> => useStore(hidden);

/** Hides the items and calls `send` when the message closes, unless the user undoes it. Shows them again if it fails. */
export function deleteWithUndo(ids: readonly string[], text: string, send: () => Promise<unknown>): void {
  hidden.set(new Set([...hidden.get(), ...ids]));
  const show = () => hidden.set(new Set([...hidden.get()].filter((each) => !ids.includes(each))));
  toast({ text, action: { name: common.undo, run: show }, onClose: () => void send().finally(show) });
}
