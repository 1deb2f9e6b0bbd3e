// What somebody has deleted, and may still take back: it is out of sight, and goes when the message about it does.
// Nothing is sent before that, so a page that is closed meanwhile has deleted nothing.

import { useSyncExternalStore } from "react";
import { toast } from "@/kit";
import { common } from "@/texts/common";

const NONE: ReadonlySet<string> = new Set();
let ids = NONE;
const watching = new Set<() => void>();

function change(next: ReadonlySet<string>): void {
  ids = next.size ? next : NONE;
  for (const each of watching) each();
}

const watch = (listener: () => void) => {
  watching.add(listener);
  return () => void watching.delete(listener);
};

/** What is not shown, by its id. */
export const useLeaving = (): ReadonlySet<string> => useSyncExternalStore(watch, () => ids);

/** Hide these, and do it in some seconds, unless it is taken back. They are shown again where it went wrong. */
export function leave(these: readonly string[], text: string, go: () => Promise<unknown>): void {
  change(new Set([...ids, ...these]));
  const show = () => change(new Set([...ids].filter((each) => !these.includes(each))));
  toast({ text, action: { name: common.undo, run: show }, onGone: () => void go().finally(show) });
}
