import { ArrowDownToLine, ArrowUpToLine, Ban, Ellipsis, Pause, Play, RotateCcw, Trash2 } from "lucide-react";
import type { QueueAsked } from "@/api/queries";
import type { QueueEntry } from "@/api/types";
import { PRIORITIES } from "@/jobs/actions";
import { countJobs } from "@/jobs/bulk";
import type { JobActions } from "@/jobs/use-job-actions";
import { useMatchCount } from "@/jobs/use-match-count";
import { Button, IconButton, Menu } from "@/kit";
import { SelectionTray } from "@/kit/SelectionTray";
import { deleteWithUndo } from "@/kit/undoable-delete";
import { queue as texts } from "@/texts/queue";
import { ALL, bulkFilter, bulkSelections, countSelected, isActive, selectionId } from "./rules";

interface SelectionActionsProps {
  selected: readonly string[];
  asked: QueueAsked;
  /** The loaded entries. */
  entries: readonly QueueEntry[];
  hasMore: boolean;
  actions: JobActions;
  onSelect: (selected: string[]) => void;
}

/** Actions on all selected entries. */
export function SelectionActions({ selected, asked, entries, hasMore, actions, onSelect }: SelectionActionsProps) {
  const matching = useMatchCount(bulkFilter(asked), selected.length > 0);
  const isAll = selected.includes(ALL);
  const selections = bulkSelections(selected, asked);
  const { tray, ask } = texts;
  const counted = countSelected(entries, selected, hasMore);
  const batches = counted?.batches ?? 0;
  const text = isAll ? tray.isAll(matching, batches) : batches > 0 && counted ? tray.some(counted.jobs, batches) : null;

  /** Counts the jobs and pins the selection to them. A batch has many jobs. */
  async function pinSelection() {
    const found = await countJobs(selections);
    return {
      total: found.reduce((sum, each) => sum + each.matched, 0),
      pinned: found.map((each) => each.selection),
    };
  }
  const run = (action: string, options?: Record<string, unknown>) => void actions.bulk(action, selections, options);
  async function cancel() {
    const { total, pinned } = await pinSelection();
    const confirmed = await actions.confirm({
      title: ask.cancelTitle(total),
      text: ask.cancelText,
      yes: ask.confirmCancel,
    });
    if (confirmed) await actions.bulk("cancel", pinned);
  }
  async function remove() {
    const { total, pinned } = await pinSelection();
    const confirmed = await actions.confirm({
      title: ask.deleteManyTitle(total),
      text: ask.deleteManyText,
      yes: ask.confirmDelete,
      option: ask.keepFiles,
    });
    if (!confirmed) return;
    const deleted = entries.filter((each) => !isActive(each) && (isAll || selected.includes(selectionId(each))));
    deleteWithUndo(
      deleted.map((each) => each.id),
      ask.jobsPending(total),
      () => actions.thenRefetchQueue(actions.bulk("delete", pinned, { keep_files: confirmed.isOptionOn })),
    );
    onSelect([]);
  }

  return (
    <SelectionTray count={selected.length} onClear={() => onSelect([])} {...(text && { text })}>
      {!isAll && (
        <Button look="quiet" onClick={() => onSelect([ALL])}>
          {tray.allMatching(matching)}
        </Button>
      )}
      <Button icon={Pause} onClick={() => run("pause")}>
        {tray.pause}
      </Button>
      <Button icon={Play} onClick={() => run("resume")}>
        {tray.resume}
      </Button>
      <Button icon={RotateCcw} onClick={() => run("retry")}>
        {tray.retry}
      </Button>
      <Button icon={Ban} onClick={() => void cancel()}>
        {tray.cancel}
      </Button>
      <Button icon={Trash2} look="danger" onClick={() => void remove()}>
        {tray.delete}
      </Button>
      <Menu
        items={[
          [
            { name: tray.top, icon: ArrowUpToLine, run: () => run("move", { to: "top" }) },
            { name: tray.bottom, icon: ArrowDownToLine, run: () => run("move", { to: "bottom" }) },
          ],
          (["high", "normal", "low"] as const).map((each) => ({
            name: `${texts.priority}: ${texts.priorities[each]}`,
            run: () => run("priority", { priority: PRIORITIES[each] }),
          })),
        ]}
      >
        <IconButton icon={Ellipsis} name={tray.more} look="plain" />
      </Menu>
    </SelectionTray>
  );
}
