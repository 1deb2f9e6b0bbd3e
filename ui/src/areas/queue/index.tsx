import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { Ellipsis, Eraser, Pause, Play, Plus, RotateCcw, Rows3, SearchX } from "lucide-react";
import {
  type DragEvent,
  useCallback,
  useDeferredValue,
  useEffect,
  useLayoutEffect,
  useMemo,
  useRef,
  useState,
} from "react";
import { counts as countsQuery, job as jobQuery, type QueueAsked } from "@/api/queries";
import type { Lane, QueueEntry, QueueItem } from "@/api/types";
import { useCommands } from "@/app/commands";
import { Header, SearchField } from "@/app/Header";
import { useKeys } from "@/app/keyboard";
import { fitting, listed, unlisted } from "@/app/search";
import { useDoing } from "@/areas/job/doing";
import { JobPanel } from "@/areas/job/Panel";
import { titleOf } from "@/areas/job/rules";
import {
  Button,
  buttonClass,
  Chip,
  EmptyState,
  ErrorCard,
  FilterChip,
  Heading,
  IconButton,
  Menu,
  Skeleton,
} from "@/kit";
import { Inspector } from "@/kit/Inspector";
import type { VirtualHandle } from "@/kit/VirtualList";
import { VirtualList } from "@/kit/VirtualList";
import { common } from "@/texts/common";
import { queue as texts } from "@/texts/queue";
import { BatchPanel } from "./BatchPanel";
import { ClearDialog } from "./ClearDialog";
import { Cursor } from "./cursor";
import { Away, Now, Strip, useLanes } from "./Now";
import styles from "./queue.module.css";
import {
  ALL,
  type Beside,
  canMove,
  jobStatus,
  type Line,
  linesOf,
  pausedBy,
  STATUSES,
  selectionOf,
  subjectOf,
  type VerbName,
  verbsOf,
} from "./rules";
import { Tray } from "./Tray";
import { type UnitActions, UnitCard } from "./UnitCard";
import { useUnits } from "./useUnits";
import { Views } from "./Views";

/** Keys that are held come faster than this. */
const STEP_MS = 120;

type Search = Partial<Record<"status" | "workflow" | "batch" | "q" | "sort" | "job" | "sel", string>>;

export default function QueuePage() {
  const search = useSearch({ from: "/queue" });
  const navigate = useNavigate({ from: "/queue" });
  const asked = useMemo<QueueAsked>(
    () => ({
      ...(search.status && { status: search.status }),
      ...(search.workflow && { workflow: search.workflow }),
      ...(search.q && { q: search.q }),
      ...(search.sort && { sort: search.sort }),
    }),
    [search.status, search.workflow, search.q, search.sort],
  );
  const found = useUnits(asked);
  const { units } = found;
  const lanes = useLanes();
  const { data: now } = useQuery(countsQuery);
  const list = useRef<VirtualHandle>(null);
  const [isNowSeen, setNowSeen] = useState(true);
  const [isClearing, setClearing] = useState(false);
  const [drag, setDrag] = useState<{ id: string; over: string | null; isAfter: boolean } | null>(null);

  const [large, setLarge] = useState("");
  const change = useCallback(
    ({ sel, ...next }: Search, isNew = false) => {
      const { written, kept } = fitting(sel ?? "");
      if (sel !== undefined) setLarge(kept);
      const selection = sel === undefined ? {} : { sel: written };
      void navigate({ search: (before: Search) => ({ ...before, ...next, ...selection }) as never, replace: !isNew });
    },
    [navigate],
  );
  const sel = large || search.sel;
  const doing = useDoing(
    ({ id, isBatch }) => change(isBatch ? { batch: id, job: "" } : { job: id, batch: "" }),
    () => change({ job: "", batch: "" }),
  );

  // who goes through the list by keys is shown where at once; the address, and what is beside, follow when they rest
  const opened = search.batch ?? search.job;
  const [cursor] = useState(() => new Cursor(opened));
  const resting = useRef<ReturnType<typeof setTimeout>>(undefined);
  // whoever opened it, the address says what is open now
  useLayoutEffect(() => {
    cursor.set(opened);
    return () => clearTimeout(resting.current);
  }, [cursor, opened]);
  const beside = useDeferredValue(search);
  const selected = listed(sel);
  const chosen = useMemo(() => new Set(listed(sel)), [sel]);
  const isAll = chosen.has(ALL);
  const isFiltered = Boolean(search.q || search.status || search.workflow);
  const hasNow = lanes.length > 0 && !isFiltered && !search.sort;
  const lines = useMemo<Line[]>(
    () => [...(hasNow ? [{ kind: "now", key: "now" } as const] : []), ...linesOf(units, search.sort)],
    [units, search.sort, hasNow],
  );

  const lastSelected = useRef<string | null>(null);
  const select = (unit: QueueEntry, isOn: boolean, isRange: boolean) => {
    const name = selectionOf(unit);
    let names = [name];
    if (isRange && lastSelected.current) {
      const places = [lastSelected.current, unit.id].map((id) => units.findIndex((each) => each.id === id));
      const [from = 0, to = 0] = places.sort((a, b) => a - b);
      if (from >= 0) names = units.slice(from, to + 1).map(selectionOf);
    }
    lastSelected.current = unit.id;
    const rest = selected.filter((each) => each !== ALL && !names.includes(each));
    change({ sel: unlisted(isOn ? [...rest, ...names] : rest) ?? "" });
  };
  const open = (unit: QueueEntry) =>
    change(unit.is_batch ? { batch: unit.id, job: "" } : { job: unit.id, batch: "" }, !cursor.at);

  const openLane = (job: NonNullable<Lane["job"]>) =>
    change(job.batch_id ? { batch: job.batch_id, job: job.id } : { job: job.id, batch: "" });

  // dragging
  const byId = (id: string) => units.find((each) => each.id === id);
  async function put(id: string, beside: Beside) {
    const unit = byId(id);
    if (!unit || id === beside.other) return;
    found.place(id, beside);
    await doing.moveBeside({ id, isBatch: unit.is_batch }, beside);
  }
  const latest = useRef({ select, open, change, doing, drag, put, sort: search.sort, setDrag });
  latest.current = { select, open, change, doing, drag, put, sort: search.sort, setDrag };
  // the same ones for ever, so that a card is drawn anew only when its unit has changed
  const actions = useMemo<UnitActions>(
    () => ({
      open: (unit) => latest.current.open(unit),
      openItem: (unit, item) => latest.current.change({ batch: unit.id, job: item.id }),
      select: (...given) => latest.current.select(...given),
      doVerb: (verb, unit) => void latest.current.doing.doVerb(verb, subjectOf(unit)),
      setPriority: (unit, priority) => void latest.current.doing.setPriority(subjectOf(unit), priority),
      dragStart: (unit, event) => {
        event.dataTransfer.effectAllowed = "move";
        event.dataTransfer.setData("text/plain", unit.label ?? unit.id);
        latest.current.setDrag({ id: unit.id, over: null, isAfter: false });
      },
      dragOver: (unit, event: DragEvent) => {
        const { drag } = latest.current;
        if (!drag || !canMove(unit, latest.current.sort)) return;
        event.preventDefault();
        event.dataTransfer.dropEffect = "move";
        const box = event.currentTarget.getBoundingClientRect();
        const isAfter = event.clientY > box.top + box.height / 2;
        if (drag.over !== unit.id || drag.isAfter !== isAfter) {
          latest.current.setDrag({ id: drag.id, over: unit.id, isAfter });
        }
      },
      drop: (event) => {
        const { drag } = latest.current;
        if (!drag) return;
        event.preventDefault();
        latest.current.setDrag(null);
        if (drag.over) void latest.current.put(drag.id, { other: drag.over, isAfter: drag.isAfter });
      },
      dragEnd: () => latest.current.setDrag(null),
    }),
    [],
  );

  // keys
  const current = () => units.find((each) => each.id === cursor.at);
  const openedUnit = units.find((each) => each.id === opened);
  const step = (by: 1 | -1) => {
    const at = units.findIndex((each) => each.id === cursor.at);
    const next = units[at < 0 ? (by > 0 ? 0 : units.length - 1) : at + by];
    if (!next) return;
    cursor.set(next.id);
    clearTimeout(resting.current);
    if (next.id !== opened) resting.current = setTimeout(() => latest.current.open(next), STEP_MS);
    list.current?.scrollTo(lines.findIndex((each) => each.key === next.id));
  };
  const stepItem = (by: 1 | -1) => {
    const unit = current();
    if (!unit?.is_batch) return;
    const at = unit.items.findIndex((each) => each.id === search.job);
    const next = unit.items[at < 0 ? 0 : at + by];
    if (next) change({ job: next.id });
  };
  const doFirst = (...names: VerbName[]) => {
    const unit = current();
    if (!unit) return;
    const offered = verbsOf(subjectOf(unit));
    const verb = names.find((each) => offered.includes(each));
    if (verb) void doing.doVerb(verb, subjectOf(unit));
  };
  const { keys } = texts;
  const group = texts.title;
  useKeys([
    { keys: "j", name: common.keys.next, group, run: () => step(1) },
    { keys: "k", name: common.keys.previous, group, run: () => step(-1) },
    { keys: "ArrowDown", name: common.keys.next, group, isHidden: true, run: () => step(1) },
    { keys: "ArrowUp", name: common.keys.previous, group, isHidden: true, run: () => step(-1) },
    { keys: "ArrowRight", name: keys.item, group, run: () => stepItem(1) },
    { keys: "ArrowLeft", name: keys.item, group, isHidden: true, run: () => stepItem(-1) },
    {
      keys: "Enter",
      name: keys.open,
      group,
      run: (event) => {
        const id = (cursor.at === opened ? search.job : undefined) ?? current()?.items[0]?.id;
        // a button that has the focus is pressed
        if (event.target instanceof HTMLElement && event.target.closest("button, a, summary")) {
          (event.target.closest("button, a, summary") as HTMLElement).click();
        } else if (id) void navigate({ to: "/jobs/$id", params: { id } });
      },
    },
    {
      keys: "x",
      name: common.keys.select,
      group,
      run: () => {
        const unit = current();
        if (unit) select(unit, !chosen.has(selectionOf(unit)), false);
      },
    },
    { keys: "mod+a", name: keys.selectAll, group, run: () => change({ sel: ALL }) },
    { keys: "p", name: keys.pause, group, run: () => doFirst("resume", "pause", "pauseNow") },
    { keys: "r", name: keys.again, group, run: () => doFirst("retry", "retryCanceled", "again") },
    { keys: "t", name: keys.next, group, run: () => doFirst("next") },
    { keys: "shift+k", name: keys.up, group, run: () => doFirst("up") },
    { keys: "shift+j", name: keys.down, group, run: () => doFirst("down") },
    { keys: "Delete", name: keys.remove, group, run: () => doFirst("cancel", "delete") },
    {
      keys: "Escape",
      name: keys.back,
      group,
      run: () => {
        clearTimeout(resting.current);
        cursor.set(opened);
        change(selected.length ? { sel: "" } : { job: "", batch: "" });
      },
    },
  ]);

  // the whole queue
  const { data: shownJob } = useQuery({ ...jobQuery(search.job ?? ""), enabled: Boolean(search.job) });
  const number = (status: string) => now?.counts[jobStatus(status)] ?? 0;
  const isPaused = number("paused") > 0 && !number("waiting") && !number("running");
  async function pauseAll(mode: "after" | "now") {
    // what runs goes on: it is neither paused nor counted; what was fetched to run next waits, and is given back
    const among = pausedBy(mode).map((status) => ({ filter: { status } }));
    await doing.bulk("pause", among, { mode });
  }
  const resumeAll = () => void doing.bulk("resume", [{ filter: { status: "paused" } }]);
  const retryAll = () => void doing.bulk("retry", [{ filter: { status: "failed", in_queue: true } }]);
  const ended = number("completed") + number("failed") + number("canceled");
  const page = common.palette.page;
  useCommands([
    { id: "queue-pause", name: texts.pauseAfter, group: page, icon: Pause, run: () => void pauseAll("after") },
    { id: "queue-resume", name: texts.resumeAll, group: page, icon: Play, run: resumeAll },
    { id: "queue-retry", name: texts.retryFailed, group: page, icon: RotateCcw, run: retryAll },
    { id: "queue-clear", name: texts.clear, group: page, icon: Eraser, run: () => setClearing(true) },
  ]);

  const setSearch = (next: Record<string, string>) =>
    change({
      status: next.status ?? "",
      workflow: next.workflow ?? "",
      q: next.q ?? "",
      sort: next.sort ?? "",
      sel: "",
    });
  const total = Object.values(now?.counts ?? {}).reduce((sum, each) => sum + each, 0);

  return (
    <>
      <Header
        title={texts.title}
        search={
          <SearchField value={search.q ?? ""} placeholder={texts.search} onChange={(q) => change({ q, sel: "" })} />
        }
        actions={
          <>
            {isPaused ? (
              <Button icon={Play} onClick={resumeAll}>
                {texts.resumeAll}
              </Button>
            ) : (
              <Button
                icon={Pause}
                className={styles.wideOnly ?? ""}
                disabled={!number("waiting") && !number("running")}
                onClick={() => void pauseAll("after")}
              >
                {texts.pauseAfter}
              </Button>
            )}
            <Menu
              items={[
                [
                  {
                    name: texts.pauseAfter,
                    icon: Pause,
                    isDisabled: !number("waiting") && !number("running"),
                    run: () => void pauseAll("after"),
                  },
                  {
                    name: texts.pauseNow,
                    icon: Pause,
                    isDisabled: !number("waiting") && !number("running"),
                    run: () => void pauseAll("now"),
                  },
                  { name: texts.resumeAll, icon: Play, isDisabled: !number("paused"), run: resumeAll },
                  { name: texts.retryFailed, icon: RotateCcw, isDisabled: !number("failed"), run: retryAll },
                ],
                [
                  {
                    name: texts.clear,
                    icon: Eraser,
                    isDisabled: !ended,
                    run: () => setClearing(true),
                  },
                ],
              ]}
            >
              <IconButton icon={Ellipsis} name={texts.queueMenu} look="plain" />
            </Menu>
            <Link to="/create" className={buttonClass({ look: "primary" })}>
              <Plus aria-hidden />
              {common.areas.create}
            </Link>
          </>
        }
      >
        <FilterChip isOn={!search.status} count={total} onClick={() => change({ status: "", sel: "" })}>
          {texts.all}
        </FilterChip>
        {STATUSES.filter((each) => number(each) > 0 || each === search.status).map((each) => (
          <FilterChip
            key={each}
            isOn={search.status === each}
            count={number(each)}
            onClick={() => change({ status: search.status === each ? "" : each, sel: "" })}
          >
            {common.status[each]}
          </FilterChip>
        ))}
        <Views
          search={{
            status: search.status ?? "",
            workflow: search.workflow ?? "",
            q: search.q ?? "",
            sort: search.sort ?? "",
          }}
          onChange={setSearch}
        />
        {search.workflow && (
          <Chip onRemove={() => change({ workflow: "", sel: "" })}>
            {units.find((each) => each.workflow_slug === search.workflow)?.workflow_name ?? search.workflow}
          </Chip>
        )}
      </Header>
      <div className={styles.columns}>
        <div className={styles.column}>
          <Away lanes={lanes} isNowSeen={isNowSeen && hasNow} />
          {!hasNow && <Strip lanes={lanes} onOpen={openLane} />}
          {found.error && !units.length && <ErrorCard title={found.error.message} />}
          {found.isPending && (
            <div className={styles.waiting} role="status" aria-label={texts.loading}>
              <Skeleton height={110} />
              <Skeleton height={76} />
              <Skeleton height={76} />
            </div>
          )}
          {lines.length > 0 && (units.length > 0 || !isFiltered) && (
            <VirtualList
              ref={list}
              items={lines}
              keyOf={(line) => line.key}
              height={84}
              gap={8}
              name={texts.list}
              className={styles.list ?? ""}
              onEnd={() => {
                if (found.hasNextPage && !found.isFetchingNextPage) void found.fetchNextPage();
              }}
            >
              {(line, index) => {
                if (line.kind === "now") {
                  return <Now lanes={lanes} onSeen={setNowSeen} onOpen={openLane} />;
                }
                if (line.kind === "heading") {
                  return (
                    <div className={styles.heading} data-first={index === 0 || undefined}>
                      <Heading>{line.text}</Heading>
                    </div>
                  );
                }
                const { unit } = line;
                const isOver = drag?.over === unit.id && drag.id !== unit.id;
                return (
                  <UnitCard
                    unit={unit}
                    cursor={cursor}
                    isSelected={isAll || chosen.has(selectionOf(unit))}
                    canMove={canMove(unit, search.sort)}
                    openJob={unit.id === opened ? search.job : undefined}
                    dropAt={isOver ? (drag.isAfter ? "after" : "before") : null}
                    actions={actions}
                  />
                );
              }}
            </VirtualList>
          )}
          {found.isDeep && <Top onTop={found.atTop} />}
          {found.isSuccess && !units.length && !found.isPlaceholderData && (
            <div className={styles.empty}>
              {isFiltered ? (
                <EmptyState icon={SearchX} title={texts.noMatch} text={texts.noMatchAdvice}>
                  <Button onClick={() => setSearch({})}>{texts.showAll}</Button>
                </EmptyState>
              ) : (
                <EmptyState icon={Rows3} title={texts.empty} text={texts.emptyAdvice}>
                  <Link to="/create" className={buttonClass({ look: "primary" })}>
                    {texts.emptyAction}
                  </Link>
                </EmptyState>
              )}
            </div>
          )}
          <Tray
            selected={selected}
            asked={asked}
            units={units}
            hasMore={found.hasNextPage}
            doing={doing}
            onSelect={(next) => change({ sel: unlisted(next) ?? "" })}
          />
        </div>
        {opened && (
          <Inspector
            title={shownJob ? titleOf(shownJob) : (openedUnit?.label ?? texts.batch.title)}
            name={openedUnit?.label ?? texts.batch.title}
            onClose={() => change({ job: "", batch: "" })}
          >
            {beside.job && <JobPanel id={beside.job} doing={doing} />}
            {beside.batch && (
              <BatchPanel
                id={beside.batch}
                job={beside.job}
                counts={openedUnit?.id === beside.batch ? openedUnit?.counts : undefined}
                doing={doing}
                onItem={(item: QueueItem) => change({ job: item.id })}
              />
            )}
          </Inspector>
        )}
      </div>
      <ClearDialog isOpen={isClearing} onClose={() => setClearing(false)} doing={doing} />
      {doing.dialog}
    </>
  );
}

/** Tells when one has come back to the top of a long list. */
function Top({ onTop }: { onTop: () => void }) {
  const mark = useRef<HTMLSpanElement>(null);
  const newest = useRef(onTop);
  newest.current = onTop;
  useEffect(() => {
    const scroll = mark.current?.parentElement?.querySelector<HTMLElement>('[role="list"]');
    if (!scroll) return;
    const check = () => scroll.scrollTop < scroll.clientHeight && newest.current();
    scroll.addEventListener("scroll", check, { passive: true });
    return () => scroll.removeEventListener("scroll", check);
  }, []);
  return <span ref={mark} hidden />;
}
