import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { Columns2, Images, X } from "lucide-react";
import { type MouseEvent, useLayoutEffect, useMemo, useRef, useState } from "react";
import { Compare, MAX_COMPARED } from "@/areas/gallery/Compare";
import { type DialogRequest, GalleryDialog } from "@/areas/gallery/GalleryDialog";
import type { Item } from "@/areas/gallery/item";
import { items } from "@/areas/gallery/item-store";
import { Lightbox } from "@/areas/gallery/Lightbox";
import { LightboxActions } from "@/areas/gallery/LightboxActions";
import { useActions } from "@/areas/gallery/use-actions";
import { useItemMenu } from "@/areas/gallery/use-item-menu";
import { tileIdAt, useTilePointer } from "@/areas/gallery/use-tile-pointer";
import { Button, EmptyState, Heading, IconButton, toast } from "@/kit";
import { joinList, splitList } from "@/lib/search-params";
import { common } from "@/texts/common";
import { create as texts } from "@/texts/create";
import { gallery as galleryTexts } from "@/texts/gallery";
import { FailedCard, ResultCard, RunningCard } from "./ResultCards";
import styles from "./Results.module.css";
import { type Direction, neighborAt } from "./result-list";
import { useResultKeys } from "./use-result-keys";
import type { Results as Found } from "./use-results";

const MIN_CARD_WIDTH = 160;
const GAP = 16;

interface ResultsProps {
  workflow: string;
  found: Found;
  /** The part that a phone shows. */
  view: "form" | "results";
  /** Loads the values of a job into the form. */
  onRecall: (jobId: string) => void;
  onPrompt: () => void;
}

/** The outputs of the workflow, next to its form. */
export function Results({ workflow, found, view, onRecall, onPrompt }: ResultsProps) {
  const { open, compare } = useSearch({ from: "/create" });
  const navigate = useNavigate({ from: "/create" });
  const gallery = useActions();
  const recall = gallery.recall && ((item: Item) => onRecall(item.job_id));
  const actions = { ...gallery, recall };
  const { order } = found;
  const column = useRef<HTMLElement>(null);
  const grid = useRef<HTMLDivElement>(null);
  const { columns, width } = useColumns(grid);
  const [current, setCurrent] = useState<string | null>(null);
  const [chosen, setChosen] = useState<readonly string[]>([]);
  const [dialog, setDialog] = useState<DialogRequest | null>(null);
  const selected = useMemo(() => chosen.filter((each) => order.includes(each)), [chosen, order]);
  const compared = useMemo(() => splitList(compare).slice(0, MAX_COMPARED), [compare]);

  const go = (next: { open?: string; compare?: string }, replace = false) =>
    void navigate({ search: (before) => ({ ...before, ...next }), replace });
  const show = (id: string | null) => {
    go({ open: id ?? "" }, Boolean(open));
    if (id) setCurrent(id);
  };
  const focusResult = (id: string | undefined) => {
    if (!id) return;
    setCurrent(id);
    const tile = column.current?.querySelector<HTMLElement>(`[data-id="${CSS.escape(id)}"] [data-open]`);
    tile?.closest("[data-result]")?.scrollIntoView({ block: "nearest" });
    tile?.focus({ preventScroll: true });
  };
  const close = () => {
    const last = open;
    show(null);
    requestAnimationFrame(() => focusResult(last));
  };
  const toggle = (id: string) => {
    setCurrent(id);
    setChosen((before) => (before.includes(id) ? before.filter((each) => each !== id) : [...before, id]));
  };
  const compareAll = (ids: readonly string[]) => {
    if (ids.length < 2 || ids.length > MAX_COMPARED) toast(galleryTexts.compare.needs);
    else go({ compare: joinList(ids) ?? "" });
  };
  const here = current !== null && order.includes(current) ? current : null;
  const onItem = (run: (item: Item) => void) => () => {
    const item = here === null ? undefined : items.get(here);
    if (item) run(item);
  };
  useResultKeys({
    isActive: !open && !compared.length && !dialog,
    hasResults: order.length > 0,
    onMove: (direction: Direction) =>
      focusResult(order[here === null ? 0 : neighborAt(order.indexOf(here), direction, columns, order.length)]),
    onRecall: recall && onItem(recall),
    onStar: () => {
      const marked = selected.length ? selected : here === null ? [] : [here];
      if (marked.length) void actions.mark(marked, "starred");
    },
    onSelect: onItem((item) => toggle(item.id)),
    // without a selection, compares with the next older output
    onCompare: () => {
      const at = here === null ? 0 : order.indexOf(here);
      compareAll(selected.length > 1 ? selected : order.slice(at, at + 2));
    },
    onUse: onItem((item) => void actions.takeAsInput(item)),
    onPrompt,
    onSwitch: (isInResults) => {
      if (!isInResults) focusResult(here ?? order[0]);
      else if (selected.length) setChosen([]);
      else onPrompt();
    },
  });
  const { hovered, handlers } = useTilePointer({
    onOpen: (id: string, event: MouseEvent) =>
      event.ctrlKey || event.metaKey || event.shiftKey ? toggle(id) : show(id),
    onCheck: toggle,
  });
  const menu = useItemMenu(open ? [open] : [], {
    actions,
    onAsk: setDialog,
    onCompare: compareAll,
    onChange: (query) => void navigate({ to: "/gallery", search: { ...query } }),
    onSelect: toggle,
  });
  const isEmpty = found.isLoaded && !found.results.length && !found.running.length && !found.waiting;
  return (
    <aside
      ref={column}
      className={styles.results}
      aria-label={texts.results.title}
      data-results
      data-view={view}
      data-selecting={selected.length > 0 || undefined}
    >
      <div className={styles.head}>
        <Heading>{texts.results.title}</Heading>
        {found.waiting > 0 && (
          <Link to="/queue" search={{ workflow }} className={styles.waiting} title={found.waitingText ?? undefined}>
            {texts.results.waiting(found.waiting)}
          </Link>
        )}
        {found.total > 0 && (
          <Link to="/gallery" search={{ workflow }} className={styles.waiting}>
            {texts.results.all}
          </Link>
        )}
      </div>
      {found.waitingText && found.waiting > 0 && <p className={styles.waiting}>{found.waitingText}</p>}
      {selected.length > 0 && (
        <div className={styles.chosen}>
          <span>{texts.results.selected(selected.length)}</span>
          <Button
            look="primary"
            size="small"
            icon={Columns2}
            disabled={selected.length < 2 || selected.length > MAX_COMPARED}
            title={galleryTexts.compare.needs}
            onClick={() => compareAll(selected)}
          >
            {galleryTexts.verbs.compare}
          </Button>
          <IconButton icon={X} name={common.clearSelection} size="small" onClick={() => setChosen([])} />
        </div>
      )}
      {isEmpty && <EmptyState icon={Images} title={texts.results.empty} text={texts.results.emptyAdvice} />}
      {/* biome-ignore lint/a11y/noStaticElementInteractions: the tiles in it are buttons */}
      <div
        ref={grid}
        className={styles.grid}
        style={{ gridTemplateColumns: `repeat(${columns}, minmax(0, 1fr))` }}
        {...handlers}
        onFocus={(event) => {
          const id = tileIdAt(event.target);
          if (id) setCurrent(id);
        }}
      >
        {found.running.map((each) => (
          <RunningCard key={each.id} job={each} />
        ))}
        {found.alsoRunning > 0 && <p className={styles.waiting}>{texts.results.alsoRunning(found.alsoRunning)}</p>}
        {found.results.map((each) =>
          each.kind === "failed" ? (
            <FailedCard key={each.job.id} job={each.job} />
          ) : (
            <ResultCard
              key={each.item.id}
              id={each.item.id}
              width={width}
              place={order.indexOf(each.item.id)}
              total={order.length}
              isSelected={selected.includes(each.item.id)}
              isCurrent={each.item.id === (here ?? order[0])}
              isPlaying={hovered === each.item.id}
              onRecall={recall}
              onStar={(item) => void actions.mark([item.id], "starred")}
              onSelect={(item) => toggle(item.id)}
              onUse={(item) => void actions.takeAsInput(item)}
            />
          ),
        )}
      </div>
      {open && (
        <Lightbox
          id={open}
          order={order}
          isSelected={selected.includes(open)}
          onShow={show}
          onClose={close}
          onMark={(item, mark) => void actions.mark([item.id], mark)}
          onSelect={() => toggle(open)}
          actions={<LightboxActions id={open} actions={actions} menu={menu} />}
        />
      )}
      {compared.length > 1 && (
        <Compare
          ids={compared}
          onClose={() => {
            go({ compare: "" }, true);
            requestAnimationFrame(() => focusResult(here ?? compared[0]));
          }}
          onRemove={(id) => go({ compare: compared.filter((each) => each !== id).join(",") }, true)}
          onMark={(item, mark) => void actions.mark([item.id], mark)}
        />
      )}
      {dialog && (
        <GalleryDialog
          request={dialog}
          onClose={() => setDialog(null)}
          onDeleted={() => {
            setDialog(null);
            if (open) show(null);
          }}
          onCollection={(id) => void navigate({ to: "/gallery", search: id ? { collection: id } : {} })}
        />
      )}
    </aside>
  );
}

/** Equal columns that fill the width. Tiles need their width in pixels. */
function useColumns(of: { current: HTMLElement | null }): { columns: number; width: number } {
  const [total, setTotal] = useState(0);
  useLayoutEffect(() => {
    const element = of.current;
    if (!element) return;
    const measure = () => setTotal(element.clientWidth);
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, [of]);
  const columns = Math.max(1, Math.floor((total + GAP) / (MIN_CARD_WIDTH + GAP)));
  return { columns, width: Math.floor((total - GAP * (columns - 1)) / columns) };
}
