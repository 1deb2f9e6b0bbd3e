import { useQuery } from "@tanstack/react-query";
import { ArrowDownToLine, ArrowUpToLine, Ban, Ellipsis, Pause, Play, RotateCcw, Trash2 } from "lucide-react";
import { call } from "@/api/client";
import { keys, type QueueAsked } from "@/api/queries";
import type { BulkDone, QueueEntry } from "@/api/types";
import { leave } from "@/app/leaving";
import { counted, type useDoing } from "@/areas/job/doing";
import { Button, IconButton, Menu } from "@/kit";
import { SelectionTray } from "@/kit/SelectionTray";
import { queue as texts } from "@/texts/queue";
import { ALL, amongOf, filterOf, isActive, jobsIn, PRIORITIES, selectionOf } from "./rules";

/** How many jobs match what is asked for. */
export function useMatching(asked: QueueAsked, isEnabled: boolean): number | undefined {
  const { data } = useQuery({
    queryKey: [...keys.queue, "count", asked],
    queryFn: async ({ signal }) =>
      (
        await call<BulkDone>(
          "POST",
          "/api/ai-jobs/bulk",
          { action: "cancel", filter: filterOf(asked), dry_run: true },
          signal,
        )
      ).data.matched,
    enabled: isEnabled,
  });
  return data;
}

interface TrayProps {
  selected: readonly string[];
  asked: QueueAsked;
  /** What the list has by now. */
  units: readonly QueueEntry[];
  hasMore: boolean;
  doing: ReturnType<typeof useDoing>;
  onSelect: (selected: string[]) => void;
}

/** What can be done with all that is selected. */
export function Tray({ selected, asked, units, hasMore, doing, onSelect }: TrayProps) {
  const matching = useMatching(asked, selected.length > 0);
  const isAll = selected.includes(ALL);
  const among = amongOf(selected, asked);
  const { tray, ask } = texts;
  const known = jobsIn(units, selected, hasMore);
  const batches = known?.batches ?? 0;
  const text = isAll ? tray.isAll(matching, batches) : batches > 0 && known ? tray.some(known.jobs, batches) : null;

  /** How many jobs it is about (a batch has many), and just these. */
  async function meant() {
    const found = await counted(among);
    return { total: found.reduce((sum, each) => sum + each.matched, 0), those: found.map((each) => each.among) };
  }
  async function run(action: string, more?: Record<string, unknown>, those = among) {
    await doing.bulk(action, those, more);
  }
  async function cancel() {
    const { total, those } = await meant();
    const confirmed = await doing.ask({
      title: ask.cancelTitle(total),
      text: ask.cancelText,
      yes: ask.cancelYes,
    });
    if (confirmed) await run("cancel", {}, those);
  }
  async function remove() {
    const { total, those } = await meant();
    const confirmed = await doing.ask({
      title: ask.deleteManyTitle(total),
      text: ask.deleteManyText,
      yes: ask.deleteYes,
      option: ask.keepFiles,
    });
    if (!confirmed) return;
    const chosen = units.filter((each) => !isActive(each) && (isAll || selected.includes(selectionOf(each))));
    const ids = chosen.map((each) => each.id);
    leave(ids, ask.jobsGo(total), () =>
      doing.refetchAfter(doing.bulk("delete", those, { keep_files: confirmed.isOn })),
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
      <Button icon={Pause} onClick={() => void run("pause")}>
        {tray.pause}
      </Button>
      <Button icon={Play} onClick={() => void run("resume")}>
        {tray.resume}
      </Button>
      <Button icon={RotateCcw} onClick={() => void run("retry")}>
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
            { name: tray.top, icon: ArrowUpToLine, run: () => void run("move", { to: "top" }) },
            { name: tray.bottom, icon: ArrowDownToLine, run: () => void run("move", { to: "bottom" }) },
          ],
          (["high", "normal", "low"] as const).map((each) => ({
            name: `${texts.priority}: ${texts.priorities[each]}`,
            run: () => void run("priority", { priority: PRIORITIES[each] }),
          })),
        ]}
      >
        <IconButton icon={Ellipsis} name={tray.more} look="plain" />
      </Menu>
    </SelectionTray>
  );
}
