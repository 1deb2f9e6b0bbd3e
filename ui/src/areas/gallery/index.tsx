import { useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { ArrowUp, Grid3x3, Images } from "lucide-react";
import { type MouseEvent, useCallback, useMemo, useRef, useState } from "react";
import { Button, ErrorCard, RightClickMenu, toast } from "@/kit";
import { Header } from "@/kit/Header";
import { SearchField } from "@/kit/SearchField";
import { useLocalStorage } from "@/lib/local-storage";
import { joinList, splitList } from "@/lib/search-params";
import { common } from "@/texts/common";
import { gallery as texts } from "@/texts/gallery";
import { CollectionsButton } from "./CollectionsButton";
import { Compare, MAX_COMPARED } from "./Compare";
import { EmptyGallery } from "./EmptyGallery";
import { Filters } from "./Filters";
import { type DialogRequest, GalleryDialog } from "./GalleryDialog";
import { Grid, type GridHandle } from "./Grid";
import styles from "./gallery.module.css";
import { useItem } from "./item-store";
import { Lightbox } from "./Lightbox";
import { LightboxActions } from "./LightboxActions";
import { LoadingGrid } from "./LoadingGrid";
import { type Group, neighborOf, type Step } from "./layout";
import { batchGrid, type GalleryQuery, NO_FILTER, parseGalleryQuery } from "./queries";
import { SelectionBar } from "./SelectionBar";
import { SweepGrid } from "./SweepGrid";
import { useActions } from "./use-actions";
import { useGalleryKeys } from "./use-gallery-keys";
import { useGallerySelection } from "./use-gallery-selection";
import { useIndex } from "./use-index";
import { useItemMenu } from "./use-item-menu";
import { useNewCount } from "./use-new-count";
import { SIZES, type Size, ViewMenu } from "./ViewMenu";

const NO_GROUPS: readonly Group[] = [];

export default function Gallery() {
  const search = useSearch({ from: "/gallery" });
  // the same object until a filter changes: `open` and `sel` change often
  const query = useSearch({ from: "/gallery", select: parseGalleryQuery, structuralSharing: true });
  const navigate = useNavigate({ from: "/gallery" });
  const viewKey = useMemo(() => JSON.stringify(query), [query]);
  const { data, error, isPlaceholderData, refetch, first } = useIndex(query);
  const groups = data?.groups ?? first ?? NO_GROUPS;
  const order = useMemo(() => groups.flatMap((each) => each.ids), [groups]);
  const actions = useActions();
  const grid = useRef<GridHandle>(null);
  const [dialog, setDialog] = useState<DialogRequest | null>(null);
  const [size, setSize] = useLocalStorage("gallery.size");
  const sizeNow: Size = size && size in SIZES ? (size as Size) : "medium";
  const [current, setCurrent] = useState<string | null>(null);

  const go = useCallback(
    (next: Partial<typeof search>, replace = true) =>
      void navigate({ search: (before) => ({ ...before, ...next }), replace }),
    [navigate],
  );
  const setSel = useCallback((sel: string) => go({ sel }), [go]);
  const selection = useGallerySelection({ order, isLoaded: data !== undefined, sel: search.sel, onSel: setSel });
  const { ids } = selection;
  const change = (next: GalleryQuery) => {
    selection.clear();
    go({ ...next, sel: "", open: "" }, false);
  };
  // one history entry per search, not one per keystroke
  const searchFor = (q: string) => {
    selection.clear();
    go({ q, sel: "", open: "" }, Boolean(query.q));
  };

  const open = (id: string | null) => {
    go({ open: id ?? "" }, Boolean(search.open));
    if (id) setCurrent(id);
  };
  const closeLightbox = () => {
    const last = search.open;
    open(null);
    if (last) grid.current?.focus(last);
  };
  const compared = useMemo(() => splitList(search.compare).slice(0, MAX_COMPARED), [search.compare]);
  const compare = (some: readonly string[]) => {
    if (some.length < 2 || some.length > MAX_COMPARED) toast(texts.compare.needs);
    else go({ compare: joinList(some) ?? "" }, false);
  };

  const check = (id: string, event: Pick<MouseEvent, "shiftKey">) => {
    setCurrent(id);
    if (event.shiftKey) selection.extendTo(id);
    else selection.toggle(id);
  };
  const openOrSelect = (id: string, event: MouseEvent) => {
    const isSelecting = event.shiftKey || event.ctrlKey || event.metaKey;
    // with a selection, a click selects; Enter (no click detail) always opens
    if (isSelecting || (ids.length > 0 && event.detail > 0)) check(id, event);
    else open(id);
  };
  const jump = (id: string | undefined) => {
    if (!id) return;
    setCurrent(id);
    grid.current?.focus(id);
  };
  const move = (step: Step, isExtending = false) => {
    const layout = grid.current?.layout;
    if (!layout?.ids.length) return;
    const from = current === null ? undefined : layout.placeOf.get(current);
    const next = layout.ids[from === undefined ? 0 : neighborOf(layout, from, step)] as string;
    if (isExtending) selection.extendTo(next, current);
    jump(next);
  };
  useGalleryKeys({
    openId: search.open,
    isComparing: compared.length > 0,
    current,
    order,
    selectedIds: ids,
    targets: ids.length ? ids : current && selection.known.has(current) ? [current] : [],
    actions,
    onMove: move,
    onJump: jump,
    onCheck: check,
    onSelectAll: selection.selectAll,
    onClear: selection.clear,
    onCompare: compare,
    onDialog: setDialog,
  });

  const [isAtTop, setAtTop] = useState(true);
  const newCount = useNewCount(order, viewKey, isAtTop, Boolean(data) && !isPlaceholderData);

  const [pointed, setPointed] = useState<string | null>(null);
  const menuIds = pointed && selection.selected.ids.has(pointed) ? ids : pointed ? [pointed] : [];
  const menuOptions = { actions, onAsk: setDialog, onCompare: compare, onChange: change, onSelect: check };
  const menu = useItemMenu(menuIds, { ...menuOptions, onOpen: open });
  const openMenu = useItemMenu(search.open ? [search.open] : [], menuOptions);

  const by = query.by || "day";
  const nameOf = (each: Group) => {
    const name = by === "day" ? texts.day(each.key) : each.name || texts.noGroup[by] || "";
    return texts.heading(name, each.ids.length);
  };
  const batchName = useBatchName(query.batch, order[0]);
  const { data: sweep } = useQuery(batchGrid(query.batch ?? ""));
  const hasGrid = Boolean(query.batch && sweep?.axes.length);
  const isGrid = hasGrid && search.grid === "1";
  const isEmpty = data !== undefined && !isPlaceholderData && order.length === 0;
  return (
    <>
      <Header
        title={texts.title}
        search={<SearchField value={query.q ?? ""} placeholder={texts.search} onChange={searchFor} />}
        actions={
          <>
            {hasGrid && (
              <Button icon={isGrid ? Images : Grid3x3} onClick={() => go({ grid: isGrid ? "" : "1" }, false)}>
                {isGrid ? texts.sweep.hide : texts.sweep.show}
              </Button>
            )}
            <CollectionsButton query={query} onChange={change} onAsk={setDialog} />
            <ViewMenu query={query} size={sizeNow} onChange={change} onSize={setSize} />
          </>
        }
      >
        <Filters query={query} batchName={batchName} onChange={change} />
      </Header>
      <div className={styles.area} data-selecting={ids.length > 0 || undefined} aria-busy={!data || isPlaceholderData}>
        {error && !data && (
          <div className={styles.problem}>
            <ErrorCard title={error.message} actions={<Button onClick={() => void refetch()}>{common.retry}</Button>} />
          </div>
        )}
        {!data && !first && !error && <LoadingGrid />}
        {isGrid && query.batch ? (
          <SweepGrid
            key={query.batch}
            batch={query.batch}
            name={batchName ?? ""}
            selected={selection.selected.ids}
            onOpen={openOrSelect}
            onCheck={check}
          />
        ) : isEmpty ? (
          <EmptyGallery query={query} onShowAll={() => change(NO_FILTER)} />
        ) : (
          <RightClickMenu items={menu}>
            <div className={styles.gridPlace}>
              <Grid
                ref={grid}
                groups={groups}
                viewKey={!data || isPlaceholderData ? "" : viewKey}
                rowHeight={SIZES[sizeNow]}
                selected={selection.selected.ids}
                current={current}
                nameOf={nameOf}
                label={texts.grid}
                onOpen={openOrSelect}
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
        {newCount > 0 && (
          <Button
            look="primary"
            size="small"
            icon={ArrowUp}
            className={styles.fresh ?? ""}
            onClick={() => grid.current?.toTop()}
          >
            {texts.fresh(newCount)}
          </Button>
        )}
        <SelectionBar
          ids={ids}
          total={order.length}
          collection={query.collection}
          actions={actions}
          onAll={selection.selectAll}
          onClear={selection.clear}
          onCompare={() => compare(ids)}
          onAsk={setDialog}
        />
      </div>
      {search.open && (
        <Lightbox
          id={search.open}
          order={order}
          isSelected={selection.selected.ids.has(search.open)}
          onShow={open}
          onClose={closeLightbox}
          onMark={(item, mark) => void actions.mark([item.id], mark)}
          onSelect={() => search.open && check(search.open, { shiftKey: false })}
          actions={<LightboxActions id={search.open} actions={actions} menu={openMenu} />}
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
      {dialog && (
        <GalleryDialog
          request={dialog}
          onClose={() => setDialog(null)}
          onDeleted={() => {
            setDialog(null);
            selection.clear();
            if (search.open) go({ open: "" });
          }}
          onCollection={(id) => change({ ...NO_FILTER, ...(id && { collection: id }) })}
        />
      )}
    </>
  );
}

function useBatchName(batch: string | undefined, first: string | undefined): string | null {
  const item = useItem(first ?? "");
  return batch && item?.batch_id === batch ? item.batch_label : null;
}
