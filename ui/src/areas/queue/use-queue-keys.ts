import { useNavigate } from "@tanstack/react-router";
import { type RefObject, useLayoutEffect, useRef } from "react";
import type { QueueEntry } from "@/api/types";
import { actionsFor, type JobAction } from "@/jobs/actions";
import type { JobActions } from "@/jobs/use-job-actions";
import type { VirtualHandle } from "@/kit/VirtualList";
import { useKeys } from "@/lib/keyboard";
import { useLatest } from "@/lib/use-latest";
import { common } from "@/texts/common";
import { queue as texts } from "@/texts/queue";
import type { Cursor } from "./cursor";
import { ALL, type Line, selectionId, targetOfEntry } from "./rules";
import type { useQueueSearch } from "./use-queue-search";

/** Longer than the repeat interval of a held key: the entry opens when the cursor rests. */
const REST_MS = 120;

interface QueueKeysOptions {
  queue: ReturnType<typeof useQueueSearch>;
  actions: JobActions;
  cursor: Cursor;
  entries: readonly QueueEntry[];
  lines: readonly Line[];
  list: RefObject<VirtualHandle | null>;
  /** Id of the entry in the side panel. */
  opened: string | undefined;
  open: (entry: QueueEntry) => void;
  select: (entry: QueueEntry, isOn: boolean, isRange: boolean) => void;
}

/** The shortcuts of the queue. The cursor moves at once; the URL and the side panel follow when it rests. */
export function useQueueKeys(options: QueueKeysOptions): void {
  const { queue, actions, cursor, entries, lines, list, opened, open, select } = options;
  const { search, change, selected } = queue;
  const navigate = useNavigate();
  const latestOpen = useLatest(open);
  const resting = useRef<ReturnType<typeof setTimeout>>(undefined);
  // the URL decides which entry is open, even after a click or the back button
  useLayoutEffect(() => {
    cursor.set(opened);
    return () => clearTimeout(resting.current);
  }, [cursor, opened]);

  const current = () => entries.find((each) => each.id === cursor.get());
  const step = (by: 1 | -1) => {
    const at = entries.findIndex((each) => each.id === cursor.get());
    const next = entries[at < 0 ? (by > 0 ? 0 : entries.length - 1) : at + by];
    if (!next) return;
    cursor.set(next.id);
    clearTimeout(resting.current);
    if (next.id !== opened) resting.current = setTimeout(() => latestOpen.current(next), REST_MS);
    list.current?.scrollTo(lines.findIndex((each) => each.key === next.id));
  };
  const stepItem = (by: 1 | -1) => {
    const entry = current();
    if (!entry?.is_batch) return;
    const at = entry.items.findIndex((each) => each.id === search.job);
    const next = entry.items[at < 0 ? 0 : at + by];
    if (next) change({ job: next.id });
  };
  /** Runs the first of these actions that the entry offers. */
  const runFirst = (...wanted: JobAction[]) => {
    const entry = current();
    if (!entry) return;
    const target = targetOfEntry(entry);
    const available = actionsFor(target);
    const action = wanted.find((each) => available.includes(each));
    if (action) void actions.run(action, target);
  };
  const openPage = ({ target }: KeyboardEvent) => {
    // press the focused button instead
    const button = target instanceof HTMLElement ? target.closest<HTMLElement>("button, a, summary") : null;
    if (button) return button.click();
    const id = (cursor.get() === opened ? search.job : undefined) ?? current()?.items[0]?.id;
    if (id) void navigate({ to: "/jobs/$id", params: { id } });
  };
  const toggleSelected = () => {
    const entry = current();
    if (entry) select(entry, !selected.includes(selectionId(entry)), false);
  };
  const goBack = () => {
    clearTimeout(resting.current);
    cursor.set(opened);
    change(selected.length ? { sel: "" } : { job: "", batch: "" });
  };

  const { keys, title: group } = texts;
  useKeys([
    { keys: "j", name: common.keys.next, group, run: () => step(1) },
    { keys: "k", name: common.keys.previous, group, run: () => step(-1) },
    { keys: "ArrowDown", name: common.keys.next, group, isHidden: true, run: () => step(1) },
    { keys: "ArrowUp", name: common.keys.previous, group, isHidden: true, run: () => step(-1) },
    { keys: "ArrowRight", name: keys.item, group, run: () => stepItem(1) },
    { keys: "ArrowLeft", name: keys.item, group, isHidden: true, run: () => stepItem(-1) },
    { keys: "Enter", name: keys.open, group, run: openPage },
    { keys: "x", name: common.keys.select, group, run: toggleSelected },
    { keys: "mod+a", name: keys.selectAll, group, run: () => change({ sel: ALL }) },
    { keys: "p", name: keys.pause, group, run: () => runFirst("resume", "pause", "pauseNow") },
    { keys: "r", name: keys.again, group, run: () => runFirst("retry", "retryCanceled", "again") },
    { keys: "t", name: keys.next, group, run: () => runFirst("next") },
    { keys: "shift+k", name: keys.up, group, run: () => runFirst("up") },
    { keys: "shift+j", name: keys.down, group, run: () => runFirst("down") },
    { keys: "Delete", name: keys.remove, group, run: () => runFirst("cancel", "delete") },
    { keys: "Escape", name: keys.back, group, run: goBack },
  ]);
}
