import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import {
  ArrowUp,
  ClipboardCopy,
  Columns2,
  Download,
  FolderInput,
  FolderPlus,
  ImagePlus,
  Images,
  ListChecks,
  MoreHorizontal,
  Rows3,
  SearchX,
  SlidersHorizontal,
  SquareArrowOutUpRight,
  Star,
  ThumbsDown,
  Trash2,
} from "lucide-react";
import { type MouseEvent, useCallback, useEffect, useMemo, useRef, useState } from "react";
import { Header, SearchField } from "@/app/Header";
import { useKeys } from "@/app/keyboard";
import { listed, unlisted } from "@/app/search";
import { useStored } from "@/app/stored";
import {
  Button,
  buttonClass,
  EmptyState,
  ErrorCard,
  IconButton,
  Menu,
  type MenuItems,
  RightClickMenu,
  Skeleton,
  toast,
} from "@/kit";
import { common } from "@/texts/common";
import { gallery as texts } from "@/texts/gallery";
import { useActions } from "./actions";
import { Compare, MOST_COMPARED } from "./Compare";
import { Ask, type Asking } from "./Dialogs";
import { FILTERS, isFiltered, useIndex, type Wanted } from "./data";
import { CollectionsButton, Filters, NO_FILTER, SIZES, type Size, ViewMenu } from "./Filters";
import { Grid, type GridHandle } from "./Grid";
import styles from "./gallery.module.css";
import { copyText, usePath } from "./Info";
import type { Item } from "./item";
import { items, useItem } from "./items";
import { Lightbox } from "./Lightbox";
import { type Group, neighbour, type Step } from "./layout";
import { everything, extended, inOrder, NONE, read, remaining, type Selection, toggled, written } from "./selection";
import { Tray, useCollecting } from "./Tray";

const WORDS = [...FILTERS, "sort", "by"] as const;
const NO_GROUPS: readonly Group[] = [];

export default function Gallery() {
  const search = useSearch({ from: "/gallery" });
  const navigate = useNavigate({ from: "/gallery" });
  const wordsNow = WORDS.map((each) => search[each] ?? "").join("\n");
  // the same object while the same is wanted: other words of the address change often
  // biome-ignore lint/correctness/useExhaustiveDependencies: they are all in it
  const wanted = useMemo<Wanted>(
    () => Object.fromEntries(WORDS.filter((each) => search[each]).map((each) => [each, search[each]])),
    [wordsNow],
  );
  const { data, error, isPlaceholderData, refetch, first } = useIndex(wanted);
  const groups = data?.groups ?? first ?? NO_GROUPS;
  const order = useMemo(() => groups.flatMap((each) => each.ids), [groups]);
  const actions = useActions();
  const grid = useRef<GridHandle>(null);
  const [asking, setAsking] = useState<Asking | null>(null);
  const [size, setSize] = useStored("gallery.size");
  const sizeNow: Size = size && size in SIZES ? (size as Size) : "medium";
  const [current, setCurrent] = useState<string | null>(null);

  const go = useCallback(
    (next: Partial<typeof search>, replace = true) =>
      void navigate({ search: (before) => ({ ...before, ...next }), replace }),
    [navigate],
  );
  const change = (next: Wanted) => {
    setSelection(NONE);
    go({ ...next, sel: "", open: "" }, false);
  };

  // who goes back comes to what was before the search, not through each pause while it was typed
  const searchFor = (q: string) => {
    setSelection(NONE);
    go({ q, sel: "", open: "" }, Boolean(wanted.q));
  };

  const [selection, setSelection] = useState<Selection>(() => read(search.sel, order));
  const has = useMemo(() => new Set(order), [order]);
  const chosen = useMemo(() => (data ? remaining(selection, (id) => has.has(id)) : selection), [selection, has, data]);
  const ids = useMemo(() => inOrder(chosen.ids, order), [chosen, order]);
  // `all` cannot be read before it is known what there is
  const wasRead = useRef(false);
  useEffect(() => {
    if (!data || wasRead.current) return;
    wasRead.current = true;
    if (search.sel) setSelection(read(search.sel, order));
  }, [data, order, search.sel]);
  const sel = written(chosen, order.length) ?? "";
  useEffect(() => {
    if (wasRead.current && sel !== (search.sel ?? "")) go({ sel });
  }, [sel, search.sel, go]);
  const newest = useRef({ chosen, order });
  newest.current = { chosen, order };

  const open = (id: string | null) => {
    go({ open: id ?? "" }, Boolean(search.open));
    if (id) setCurrent(id);
  };
  const closeLightbox = () => {
    const last = search.open;
    open(null);
    if (last) grid.current?.focus(last);
  };
  const compared = useMemo(() => listed(search.compare).slice(0, MOST_COMPARED), [search.compare]);
  const compare = (some: readonly string[]) => {
    if (some.length < 2 || some.length > MOST_COMPARED) toast(texts.compare.needs);
    else go({ compare: unlisted(some) ?? "" }, false);
  };

  const check = (id: string, event: Pick<MouseEvent, "shiftKey">) => {
    setCurrent(id);
    setSelection(event.shiftKey ? extended(chosen, order, id) : toggled(chosen, id));
  };
  const opened = (id: string, event: MouseEvent) => {
    const isSelecting = event.shiftKey || event.ctrlKey || event.metaKey;
    // while some are selected a click selects; by the keyboard, Enter always opens
    if (isSelecting || (chosen.ids.size > 0 && event.detail > 0)) check(id, event);
    else {
      setCurrent(id);
      open(id);
    }
  };

  const move = (step: Step, isExtending = false) => {
    const layout = grid.current?.layout;
    if (!layout?.ids.length) return;
    const from = current === null ? undefined : layout.placeOf.get(current);
    const next = layout.ids[from === undefined ? 0 : neighbour(layout, from, step)] as string;
    if (isExtending) {
      const start = chosen.ids.size || !current ? chosen : toggled(chosen, current);
      setSelection(extended(start, order, next));
    }
    setCurrent(next);
    grid.current?.focus(next);
  };
  const jump = (id: string | undefined) => {
    if (!id) return;
    setCurrent(id);
    grid.current?.focus(id);
  };
  // not before it is known what there is
  const selectAll = () => data && setSelection(everything(order));
  /** What a key is for: what is selected, else the one that has the focus. */
  const targets = ids.length ? ids : current && has.has(current) ? [current] : [];
  const isFree = !search.open && !compared.length;
  const { keys, verbs } = texts;
  const group = texts.title;
  const arrows: [string, string, Step][] = [
    ["ArrowLeft", keys.left, "left"],
    ["ArrowRight", keys.right, "right"],
    ["ArrowUp", keys.above, "up"],
    ["ArrowDown", keys.below, "down"],
  ];
  useKeys(
    isFree
      ? [
          { keys: "j", name: keys.next, group, run: () => move("right") },
          { keys: "k", name: keys.previous, group, run: () => move("left") },
          ...arrows.map(([key, name, step]) => ({ keys: key, name, group, run: () => move(step) })),
          ...arrows.map(([key, name, step]) => ({
            keys: `shift+${key}`,
            name: `${verbs.extend}: ${name}`,
            group,
            run: () => move(step, true),
          })),
          { keys: "Home", name: keys.first, group, run: () => jump(order[0]) },
          { keys: "End", name: keys.last, group, run: () => jump(order.at(-1)) },
          { keys: "x", name: verbs.select, group, run: () => current && check(current, { shiftKey: false }) },
          { keys: "shift+x", name: verbs.extend, group, run: () => current && check(current, { shiftKey: true }) },
          { keys: "mod+a", name: verbs.selectAll, group, run: selectAll },
          { keys: "s", name: verbs.star, group, run: () => void (targets.length && actions.mark(targets, "starred")) },
          {
            keys: "d",
            name: verbs.reject,
            group,
            run: () => void (targets.length && actions.mark(targets, "rejected")),
          },
          { keys: "v", name: verbs.compare, group, run: () => compare(ids) },
          { keys: "r", name: verbs.recall, group, run: () => withOne(targets, actions.recall) },
          {
            keys: "Delete",
            name: verbs.delete,
            group,
            run: () => targets.length && setAsking({ kind: "delete", ids: targets }),
          },
          { keys: "Escape", name: common.clearSelection, group, run: () => setSelection(NONE) },
        ]
      : [],
  );

  useKeys(
    search.open && !compared.length
      ? [
          { keys: "r", name: verbs.recall, group, run: () => withOne([search.open ?? ""], actions.recall) },
          {
            keys: "Delete",
            name: verbs.delete,
            group,
            run: () => setAsking({ kind: "delete", ids: [search.open ?? ""] }),
          },
        ]
      : [],
  );

  const [isAtTop, setAtTop] = useState(true);
  const fresh = useFresh(order, wordsNow, isAtTop, Boolean(data) && !isPlaceholderData);

  const [pointed, setPointed] = useState<string | null>(null);
  const menuIds = pointed && chosen.ids.has(pointed) ? ids : pointed ? [pointed] : [];
  const menu = useItemMenu(menuIds, {
    actions,
    onAsk: setAsking,
    onOpen: open,
    onCompare: compare,
    onChange: change,
    onSelect: check,
  });
  const openItem = useItem(search.open ?? "");
  const openMenu = useItemMenu(search.open ? [search.open] : [], {
    actions,
    onAsk: setAsking,
    onCompare: compare,
    onChange: change,
    onSelect: check,
  });

  const by = wanted.by ?? "day";
  const nameOf = (each: Group) => {
    const name = by === "day" ? texts.day(each.key) : each.name || texts.noGroup[by] || "";
    return texts.heading(name, each.ids.length);
  };
  const batchName = useBatchName(wanted.batch, order[0]);
  const isEmpty = data !== undefined && !isPlaceholderData && order.length === 0;
  return (
    <>
      <Header
        title={texts.title}
        search={<SearchField value={wanted.q ?? ""} placeholder={texts.search} onChange={searchFor} />}
        actions={
          <>
            <CollectionsButton wanted={wanted} onChange={change} onAsk={setAsking} />
            <ViewMenu wanted={wanted} size={sizeNow} onChange={change} onSize={setSize} />
          </>
        }
      >
        <Filters wanted={wanted} batchName={batchName} onChange={change} />
      </Header>
      <div className={styles.area} data-selecting={ids.length > 0 || undefined} aria-busy={!data || isPlaceholderData}>
        {error && !data && (
          <div className={styles.problem}>
            <ErrorCard title={error.message} actions={<Button onClick={() => void refetch()}>{common.retry}</Button>} />
          </div>
        )}
        {!data && !first && !error && <Loading />}
        {isEmpty ? (
          <Empty wanted={wanted} onShowAll={() => change(NO_FILTER)} />
        ) : (
          <RightClickMenu items={menu}>
            <div className={styles.gridPlace}>
              <Grid
                ref={grid}
                groups={groups}
                shown={!data || isPlaceholderData ? "" : wordsNow}
                rowHeight={SIZES[sizeNow]}
                selected={chosen.ids}
                current={current}
                nameOf={nameOf}
                label={texts.grid}
                onOpen={opened}
                onCheck={check}
                onCurrent={setCurrent}
                onMenu={setPointed}
                onScrolled={setAtTop}
              >
                {data && data.total > order.length && (
                  <p className={styles.cut}>{texts.cut(order.length, data.total)}</p>
                )}
              </Grid>
            </div>
          </RightClickMenu>
        )}
        {fresh > 0 && (
          <Button
            look="primary"
            size="small"
            icon={ArrowUp}
            className={styles.fresh ?? ""}
            onClick={() => grid.current?.toTop()}
          >
            {texts.fresh(fresh)}
          </Button>
        )}
        <Tray
          ids={ids}
          total={order.length}
          collection={wanted.collection}
          actions={actions}
          onAll={selectAll}
          onClear={() => setSelection(NONE)}
          onCompare={() => compare(ids)}
          onAsk={setAsking}
        />
      </div>
      {search.open && (
        <Lightbox
          id={search.open}
          order={order}
          isSelected={chosen.ids.has(search.open)}
          onShow={open}
          onClose={closeLightbox}
          onMark={(item, mark) => void actions.mark([item.id], mark)}
          onSelect={() => search.open && check(search.open, { shiftKey: false })}
          actions={
            openItem && (
              <>
                <span className={styles.wideOnly}>
                  <Button icon={SlidersHorizontal} onClick={() => actions.recall(openItem)}>
                    {verbs.recall}
                  </Button>
                  <IconButton icon={Download} name={verbs.download} onClick={() => actions.download(openItem)} />
                </span>
                <Menu items={openMenu}>
                  <IconButton icon={MoreHorizontal} name={verbs.more} />
                </Menu>
              </>
            )
          }
        />
      )}
      {compared.length > 1 && (
        <Compare
          ids={compared}
          onClose={() => go({ compare: "" })}
          onRemove={(id) => go({ compare: compared.filter((each) => each !== id).join(",") })}
          onMark={(item, mark) => void actions.mark([item.id], mark)}
        />
      )}
      {asking && (
        <Ask
          asking={asking}
          onClose={() => setAsking(null)}
          onDeleted={() => {
            setAsking(null);
            setSelection(NONE);
            if (search.open) go({ open: "" });
          }}
          onCollection={(id) => change({ ...NO_FILTER, ...(id && { collection: id }) })}
        />
      )}
    </>
  );
}

function withOne(ids: readonly string[], run: (item: Item) => void): void {
  const item = ids.length === 1 ? items.get(ids[0] ?? "") : undefined;
  if (item) run(item);
}

const SHAPES = [1.5, 0.7, 1, 1.8, 0.75, 1.3, 1, 0.7, 1.6, 1.2, 0.8, 1.5, 1, 1.4];

/** As it will look, before it is known. */
function Loading() {
  return (
    <div className={styles.loading} aria-hidden>
      {SHAPES.map((each, at) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: they stand where they stand
        <span key={at} style={{ flex: `${each} 1 ${each * 200}px` }}>
          <Skeleton height="100%" />
        </span>
      ))}
    </div>
  );
}

function Empty({ wanted, onShowAll }: { wanted: Wanted; onShowAll: () => void }) {
  if (wanted.collection && FILTERS.every((each) => each === "collection" || !wanted[each])) {
    return (
      <EmptyState icon={FolderPlus} title={texts.emptyCollection} text={texts.emptyCollectionAdvice}>
        <Button onClick={onShowAll}>{texts.showAll}</Button>
      </EmptyState>
    );
  }
  if (isFiltered(wanted)) {
    return (
      <EmptyState icon={SearchX} title={texts.noMatch} text={texts.noMatchAdvice}>
        <Button onClick={onShowAll}>{texts.showAll}</Button>
      </EmptyState>
    );
  }
  return (
    <EmptyState icon={Images} title={texts.empty} text={texts.emptyAdvice}>
      <Link to="/create" className={buttonClass({ look: "primary" })}>
        {texts.emptyAction}
      </Link>
    </EmptyState>
  );
}

/** How many came while one looked at something further down. */
function useFresh(order: readonly string[], words: string, isAtTop: boolean, isKnown: boolean): number {
  const [first, setFirst] = useState<{ words: string; id: string | undefined } | null>(null);
  const isNew = isKnown && (isAtTop || first?.words !== words || !first.id);
  useEffect(() => {
    if (isNew) setFirst({ words, id: order[0] });
  }, [isNew, words, order]);
  if (isNew || !isKnown || !first?.id) return 0;
  return Math.max(0, order.indexOf(first.id));
}

function useBatchName(batch: string | undefined, first: string | undefined): string | null {
  const item = useItem(first ?? "");
  return batch && item?.batch_id === batch ? item.batch_label : null;
}

interface MenuGiven {
  actions: ReturnType<typeof useActions>;
  onAsk: (asking: Asking) => void;
  onOpen?: (id: string) => void;
  onCompare: (ids: readonly string[]) => void;
  onChange: (wanted: Wanted) => void;
  onSelect: (id: string, event: { shiftKey: boolean }) => void;
}

function useItemMenu(ids: readonly string[], given: MenuGiven): MenuItems {
  const { actions, onAsk, onOpen, onCompare, onChange, onSelect } = given;
  const navigate = useNavigate();
  const only = useItem(ids.length === 1 ? (ids[0] ?? "") : "");
  const path = usePath(actions.isDesk ? only : undefined);
  const collecting = useCollecting(ids, actions, onAsk);
  const { verbs } = texts;
  if (!ids.length) return [];
  const one = only
    ? [
        [
          ...(onOpen ? [{ name: verbs.open, icon: Images, keys: "Enter", run: () => onOpen(only.id) }] : []),
          { name: verbs.select, icon: ListChecks, keys: "x", run: () => onSelect(only.id, { shiftKey: false }) },
          {
            name: verbs.openJob,
            icon: SquareArrowOutUpRight,
            run: () => void navigate({ to: "/jobs/$id", params: { id: only.job_id } }),
          },
          ...(only.batch_id
            ? [
                {
                  name: verbs.sameBatch,
                  icon: Rows3,
                  run: () => onChange({ ...NO_FILTER, batch: only.batch_id ?? "" }),
                },
              ]
            : []),
        ],
        [
          { name: verbs.recall, icon: SlidersHorizontal, keys: "r", run: () => actions.recall(only) },
          { name: verbs.useAsInput, icon: ImagePlus, run: () => void actions.takeAsInput(only) },
          { name: verbs.download, icon: Download, run: () => actions.download(only) },
          ...(path
            ? [{ name: verbs.copyPath, icon: ClipboardCopy, run: () => void copyText(path, texts.copiedPath) }]
            : []),
        ],
      ]
    : [
        [
          {
            name: verbs.compare,
            icon: Columns2,
            keys: "v",
            isDisabled: ids.length > MOST_COMPARED,
            run: () => onCompare(ids),
          },
        ],
      ];
  return [
    ...one,
    [
      {
        name: only?.starred ? verbs.unstar : verbs.star,
        icon: Star,
        keys: "s",
        run: () => void actions.mark(ids, "starred"),
      },
      {
        name: only?.rejected ? verbs.unreject : verbs.reject,
        icon: ThumbsDown,
        keys: "d",
        run: () => void actions.mark(ids, "rejected"),
      },
    ],
    ...collecting.map((each) => each.map((item) => ({ icon: FolderPlus, ...item }))),
    [
      ...(only ? [] : [{ name: verbs.downloadZip, icon: Download, run: () => void actions.zip(ids) }]),
      ...(actions.isDesk
        ? [{ name: verbs.copyTo, icon: FolderInput, run: () => onAsk({ kind: "copy" as const, ids }) }]
        : []),
      {
        name: verbs.delete,
        icon: Trash2,
        keys: "Delete",
        isDanger: true,
        run: () => onAsk({ kind: "delete" as const, ids }),
      },
    ],
  ];
}
