import { AudioLines, Ellipsis, FileText, GripVertical, Images } from "lucide-react";
import { type DragEvent, memo, type RefObject, useEffect, useRef, useState } from "react";
import { here } from "@/api/client";
import type { QueueEntry, QueueItem } from "@/api/types";
import { VERB_ICONS } from "@/areas/job/Actions";
import { nameOfVerb, priorityItems } from "@/areas/job/doing";
import { Button, Checkbox, classes, IconButton, Menu, type MenuItem, Progress, RightClickMenu } from "@/kit";
import { Poster } from "@/kit/Poster";
import { ago, common, isolated } from "@/texts/common";
import { queue as texts } from "@/texts/queue";
import { type Cursor, useIsAt } from "./cursor";
import styles from "./queue.module.css";
import { isActive, partsOf, selectedPart, subjectOf, summaryOf, tilesThatFit, type VerbName, verbsOf } from "./rules";

const MOST_TILES = 36;
// So many fit side by side in each size; more are small, in two rows.
const MOST_LARGE = 6;
const MOST_MIDDLE = 8;

export interface UnitActions {
  open: (unit: QueueEntry) => void;
  openItem: (unit: QueueEntry, item: QueueItem) => void;
  select: (unit: QueueEntry, isOn: boolean, isRange: boolean) => void;
  doVerb: (verb: VerbName, unit: QueueEntry) => void;
  setPriority: (unit: QueueEntry, priority: number) => void;
  dragStart: (unit: QueueEntry, event: DragEvent) => void;
  dragOver: (unit: QueueEntry, event: DragEvent) => void;
  drop: (event: DragEvent) => void;
  dragEnd: () => void;
}

interface UnitCardProps {
  unit: QueueEntry;
  cursor: Cursor;
  isSelected: boolean;
  canMove: boolean;
  /** The job that is open, of a batch. */
  openJob: string | undefined;
  /** Where what is dragged would go. */
  dropAt: "before" | "after" | null;
  actions: UnitActions;
}

export const UnitCard = memo(function UnitCard(props: UnitCardProps) {
  const { unit, cursor, isSelected, canMove, openJob, dropAt, actions } = props;
  const label = unit.label ?? unit.workflow_name ?? texts.unnamed;
  const summary = summaryOf(unit);
  const subject = subjectOf(unit);
  const parts = partsOf(unit.counts, unit.total);
  const verbs = verbsOf(subject);
  const [doing = [], ending = []] = [
    verbs.filter((each) => each !== "cancel" && each !== "delete"),
    verbs.filter((each) => each === "cancel" || each === "delete"),
  ].map((some) =>
    some.map(
      (verb): MenuItem => ({
        name: nameOfVerb(verb, subject),
        icon: VERB_ICONS[verb],
        isDanger: verb === "cancel" || verb === "delete",
        run: () => actions.doVerb(verb, unit),
      }),
    ),
  );
  const items = [doing, priorityItems(subject, (priority) => actions.setPriority(unit, priority)), ending];
  const about = [
    unit.workflow_name === label ? null : unit.workflow_name,
    unit.first_label,
    unit.is_batch
      ? unit.matched < unit.total
        ? texts.someJobs(unit.matched, unit.total)
        : texts.jobs(unit.total)
      : null,
    isActive(unit) ? null : ago(unit.ended_at ?? unit.created_at),
    unit.priority ? texts.priorityIs(unit.priority) : null,
  ]
    .filter((each) => each !== null && each !== "")
    .map((each) => isolated(String(each)));
  return (
    <RightClickMenu items={items}>
      {/* biome-ignore lint/a11y/noStaticElementInteractions: the button in it does the same */}
      {/* biome-ignore lint/a11y/useKeyWithClickEvents: the button in it does the same */}
      <div
        className={classes(styles.unit, isSelected && styles.isSelected)}
        data-unit={unit.id}
        data-status={unit.status}
        data-drop={dropAt ?? undefined}
        draggable={canMove}
        onDragStart={(event) => actions.dragStart(unit, event)}
        onDragOver={(event) => actions.dragOver(unit, event)}
        onDrop={actions.drop}
        onDragEnd={actions.dragEnd}
        onClick={(event) => {
          if ((event.target as HTMLElement).closest("button, a, [role=checkbox]")) return;
          if (event.shiftKey || event.metaKey || event.ctrlKey) actions.select(unit, !isSelected, event.shiftKey);
          else actions.open(unit);
        }}
      >
        <span className={styles.lead}>
          <Checkbox
            name={texts.select(label)}
            isOn={selectedPart(unit, isSelected)}
            onChange={() => actions.select(unit, !isSelected, false)}
          />
          {canMove && <GripVertical className={styles.grip} aria-hidden />}
        </span>
        <span className={styles.name}>
          <Label id={unit.id} label={label} cursor={cursor} onOpen={() => actions.open(unit)} />
          <span className={styles.about} title={unit.first_label ?? undefined}>
            {about.join(" · ")}
          </span>
        </span>
        <Tiles unit={unit} openJob={openJob} onOpen={(item) => actions.openItem(unit, item)} />
        <span className={styles.summary} data-tone={summary.tone}>
          <strong>{summary.main}</strong>
          {summary.sub && (
            <span title={summary.sub} dir="auto">
              {summary.sub}
            </span>
          )}
        </span>
        {unit.status === "failed" && verbs.includes("retry") && (
          <Button size="small" icon={VERB_ICONS.retry} onClick={() => actions.doVerb("retry", unit)}>
            {nameOfVerb("retry", subject)}
          </Button>
        )}
        <Menu items={items}>
          <IconButton icon={Ellipsis} name={texts.more(label)} size="small" className={styles.menu ?? ""} />
        </Menu>
        {unit.is_batch && isActive(unit) && parts.length > 0 && (
          <span className={styles.bar}>
            <Progress parts={parts} name={texts.progress(label)} />
          </span>
        )}
      </div>
    </RightClickMenu>
  );
});

/** The only part of a card that keys draw anew; the style of the whole card follows it. */
function Label(props: { id: string; label: string; cursor: Cursor; onOpen: () => void }) {
  const isOpen = useIsAt(props.cursor, props.id);
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

interface TilesProps {
  unit: QueueEntry;
  openJob: string | undefined;
  onOpen: (item: QueueItem) => void;
}

const SIDES = { l: 50, m: 38, s: 26 };

function useWidth(of: RefObject<HTMLElement | null>): number | null {
  const [width, setWidth] = useState<number | null>(null);
  useEffect(() => {
    const seen = new ResizeObserver(([entry]) => entry && setWidth(entry.contentRect.width));
    if (of.current) seen.observe(of.current);
    return () => seen.disconnect();
  }, [of]);
  return width;
}

/** One small picture for each item, or its status where there is none yet. */
function Tiles(props: TilesProps) {
  const { unit } = props;
  if (!unit.is_batch) {
    const [item] = unit.items;
    return (
      <span className={styles.pair}>
        {item?.input_poster_url && <Picture url={item.input_poster_url} />}
        {item?.poster_url ? (
          <span className={styles.moving}>
            <Picture url={item.poster_url} />
            <Moving url={item.preview_url} />
          </span>
        ) : (
          <span className={styles.noPicture} data-status={item?.status}>
            {unit.kind === "audio" ? (
              <AudioLines aria-hidden />
            ) : unit.kind === "text" ? (
              <FileText aria-hidden />
            ) : (
              <Images aria-hidden />
            )}
          </span>
        )}
      </span>
    );
  }
  return <Strip {...props} />;
}

function Strip({ unit, openJob, onOpen }: TilesProps) {
  const strip = useRef<HTMLSpanElement>(null);
  const width = useWidth(strip);
  const size = unit.total <= MOST_LARGE ? "l" : unit.total <= MOST_MIDDLE ? "m" : undefined;
  const most = width === null ? MOST_TILES : tilesThatFit(unit.total, width, SIDES[size ?? "s"], size ? 1 : 2);
  const shown = unit.items.slice(0, Math.min(most, MOST_TILES));
  const rest = unit.total - shown.length;
  return (
    <span ref={strip} className={styles.tiles} data-size={size}>
      {shown.map((item) => (
        <button
          key={item.item_no}
          type="button"
          // the keys of the inspector go through them
          tabIndex={-1}
          className={styles.tile}
          data-status={item.status}
          data-has-input={item.input_poster_url && !item.poster_url ? true : undefined}
          aria-pressed={item.id === openJob}
          aria-label={texts.itemNamed(item.item_no + 1, common.status[item.status] ?? item.status)}
          onClick={() => onOpen(item)}
        >
          {(item.poster_url ?? item.input_poster_url) && (
            <Poster url={(item.poster_url ?? item.input_poster_url) as string} loading="lazy" />
          )}
          <Moving url={item.preview_url} />
          {/* what it was made from, where there is room */}
          {size && item.poster_url && item.input_poster_url && (
            <Poster className={styles.inset} url={item.input_poster_url} loading="lazy" />
          )}
        </button>
      ))}
      {rest > 0 && <span className={styles.moreTiles}>{texts.moreItems(rest)}</span>}
    </span>
  );
}

const Picture = ({ url }: { url: string }) => (
  <Poster className={styles.picture} url={url} loading="lazy">
    <span className={styles.noPicture}>
      <Images aria-hidden />
    </span>
  </Poster>
);

/** A short film over its poster, while the pointer is there. */
function Moving({ url }: { url: string | null }) {
  const [isOver, setOver] = useState(false);
  if (!url) return null;
  return (
    <span
      className={styles.film}
      data-film
      onPointerEnter={() => setOver(true)}
      onPointerLeave={() => setOver(false)}
      aria-hidden
    >
      {isOver && <video src={here(url)} autoPlay muted loop playsInline onError={() => setOver(false)} />}
    </span>
  );
}
