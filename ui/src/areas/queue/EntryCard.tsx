import { Ellipsis, GripVertical } from "lucide-react";
import { type DragEvent, memo } from "react";
import type { QueueEntry, QueueItem } from "@/api/types";
import { ACTION_ICONS, actionItem, actionName, priorityItems } from "@/jobs/action-menu";
import { actionsFor, type JobAction } from "@/jobs/actions";
import { Button, Checkbox, classes, IconButton, Menu, type MenuItems, Progress, RightClickMenu } from "@/kit";
import { ago, isolated } from "@/texts/common";
import { queue as texts } from "@/texts/queue";
import { type Cursor, useIsCurrent } from "./cursor";
import styles from "./EntryCard.module.css";
import { EntryTiles } from "./EntryTiles";
import { checkboxState, isActive, progressParts, summaryOf, targetOfEntry } from "./rules";

export interface EntryHandlers {
  open: (entry: QueueEntry) => void;
  openItem: (entry: QueueEntry, item: QueueItem) => void;
  select: (entry: QueueEntry, isOn: boolean, isRange: boolean) => void;
  run: (action: JobAction, entry: QueueEntry) => void;
  setPriority: (entry: QueueEntry, priority: number) => void;
  dragStart: (entry: QueueEntry, event: DragEvent) => void;
  dragOver: (entry: QueueEntry, event: DragEvent) => void;
  drop: (event: DragEvent) => void;
  dragEnd: () => void;
}

interface EntryCardProps {
  entry: QueueEntry;
  cursor: Cursor;
  isSelected: boolean;
  canMove: boolean;
  /** The open item of a batch. */
  openJob: string | undefined;
  /** Where a dragged entry would be dropped. */
  dropAt: "before" | "after" | null;
  /** Must be stable: a card renders again only when its entry changes. */
  handlers: EntryHandlers;
}

export const EntryCard = memo(function EntryCard(props: EntryCardProps) {
  const { entry, cursor, isSelected, canMove, openJob, dropAt, handlers } = props;
  const label = entry.label ?? entry.workflow_name ?? texts.unnamed;
  const target = targetOfEntry(entry);
  const items = menuItems(entry, handlers);
  const parts = progressParts(entry.counts, entry.total);
  return (
    <RightClickMenu items={items}>
      {/* biome-ignore lint/a11y/noStaticElementInteractions: the button inside does the same */}
      {/* biome-ignore lint/a11y/useKeyWithClickEvents: the button inside does the same */}
      <div
        className={classes(styles.entry, isSelected && styles.selected)}
        data-entry={entry.id}
        data-status={entry.status}
        data-drop={dropAt ?? undefined}
        draggable={canMove}
        onDragStart={(event) => handlers.dragStart(entry, event)}
        onDragOver={(event) => handlers.dragOver(entry, event)}
        onDrop={handlers.drop}
        onDragEnd={handlers.dragEnd}
        onClick={(event) => {
          if ((event.target as HTMLElement).closest("button, a, [role=checkbox]")) return;
          if (event.shiftKey || event.metaKey || event.ctrlKey) handlers.select(entry, !isSelected, event.shiftKey);
          else handlers.open(entry);
        }}
      >
        <span className={styles.lead}>
          <Checkbox
            name={texts.select(label)}
            isOn={checkboxState(entry, isSelected)}
            onChange={() => handlers.select(entry, !isSelected, false)}
          />
          {canMove && <GripVertical className={styles.grip} aria-hidden />}
        </span>
        <span className={styles.name}>
          <Label id={entry.id} label={label} cursor={cursor} onOpen={() => handlers.open(entry)} />
          <span className={styles.about}>{aboutEntry(entry, label)}</span>
        </span>
        <EntryTiles entry={entry} openJob={openJob} onOpen={(item) => handlers.openItem(entry, item)} />
        <Summary entry={entry} />
        {entry.status === "failed" && actionsFor(target).includes("retry") && (
          <Button size="small" icon={ACTION_ICONS.retry} onClick={() => handlers.run("retry", entry)}>
            {actionName("retry", target)}
          </Button>
        )}
        <Menu items={items}>
          <IconButton icon={Ellipsis} name={texts.more(label)} size="small" className={styles.menu ?? ""} />
        </Menu>
        {entry.is_batch && isActive(entry) && parts.length > 0 && (
          <span className={styles.bar}>
            <Progress parts={parts} name={texts.progress(label)} />
          </span>
        )}
      </div>
    </RightClickMenu>
  );
});

function menuItems(entry: QueueEntry, handlers: EntryHandlers): MenuItems {
  const target = targetOfEntry(entry);
  const isEnding = (action: JobAction) => action === "cancel" || action === "delete";
  const items = (actions: JobAction[]) =>
    actions.map((each) => actionItem(each, target, () => handlers.run(each, entry)));
  const available = actionsFor(target);
  return [
    items(available.filter((each) => !isEnding(each))),
    priorityItems(target, (priority) => handlers.setPriority(entry, priority)),
    items(available.filter(isEnding)),
  ];
}

function aboutEntry(entry: QueueEntry, label: string): string {
  const { matched, total } = entry;
  const parts = [
    entry.workflow_name === label ? null : entry.workflow_name,
    isActive(entry) ? entry.first_label : null,
    entry.is_batch ? (matched < total ? texts.someJobs(matched, total) : texts.jobs(total)) : null,
    isActive(entry) ? null : ago(entry.ended_at ?? entry.created_at),
    entry.priority ? texts.priorityIs(entry.priority) : null,
  ];
  return parts
    .filter((each) => each !== null && each !== "")
    .map((each) => isolated(String(each)))
    .join(" · ");
}

function Summary({ entry }: { entry: QueueEntry }) {
  const { main, sub, tone } = summaryOf(entry);
  return (
    <span className={styles.summary} data-tone={tone}>
      <strong>{main}</strong>
      {sub && (
        <span title={sub} dir="auto">
          {sub}
        </span>
      )}
    </span>
  );
}

/** The only part of a card that renders when the cursor moves. CSS styles the card by its state. */
function Label(props: { id: string; label: string; cursor: Cursor; onOpen: () => void }) {
  const isOpen = useIsCurrent(props.cursor, props.id);
  return (
    <button
      type="button"
      className={styles.label}
      aria-expanded={isOpen}
      title={props.label}
      dir="auto"
      onClick={props.onOpen}
    >
      {props.label}
    </button>
  );
}
