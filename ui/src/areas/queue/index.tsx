import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Rows3, SearchX } from "lucide-react";
import { useDeferredValue, useMemo, useRef, useState } from "react";
import { batch as batchQuery, job as jobQuery } from "@/api/queries";
import type { QueueEntry } from "@/api/types";
import type { Neighbor } from "@/jobs/actions";
import { JobPanel } from "@/jobs/JobPanel";
import { jobTitle } from "@/jobs/job";
import { type JobActions, useJobActions } from "@/jobs/use-job-actions";
import { Button, buttonClass, EmptyState, ErrorCard } from "@/kit";
import { Inspector } from "@/kit/Inspector";
import type { VirtualHandle } from "@/kit/VirtualList";
import { useLatest } from "@/lib/use-latest";
import { job as jobTexts } from "@/texts/job";
import { queue as texts } from "@/texts/queue";
import { BatchPanel } from "./BatchPanel";
import { ClearDialog } from "./ClearDialog";
import { Cursor } from "./cursor";
import { EntryCard, type EntryHandlers } from "./EntryCard";
import { EntryList, LoadingEntries, TopSentinel } from "./EntryList";
import { QueueHeader } from "./QueueHeader";
import styles from "./queue.module.css";
import { RunningNow } from "./RunningNow";
import { RunningStrip } from "./RunningStrip";
import { ALL, canMove, type Line, linesOf, selectionId, targetOfEntry } from "./rules";
import { SelectionActions } from "./SelectionActions";
import { useEntries } from "./use-entries";
import { useEntryDrag } from "./use-entry-drag";
import { useQueueKeys } from "./use-queue-keys";
import { type QueueSearch, useQueueSearch } from "./use-queue-search";
import { useSelection } from "./use-selection";
import { type SlotJob, useSlots } from "./use-slots";

export default function QueuePage() {
  const queue = useQueueSearch();
  const { search, asked, change, selected, setSelected } = queue;
  const found = useEntries(asked);
  const { entries } = found;
  const slots = useSlots();
  const list = useRef<VirtualHandle>(null);
  const [isClearing, setClearing] = useState(false);
  const actions = useJobActions({
    onCreated: ({ id, isBatch }) => change(isBatch ? { batch: id, job: "" } : { job: id, batch: "" }),
    onDeleted: () => change({ job: "", batch: "" }),
  });

  const isFiltered = Boolean(search.q || search.status || search.workflow);
  const showsSlots = slots.length > 0 && !isFiltered && !search.sort;
  const lines = useMemo<Line[]>(
    () =>
      showsSlots
        ? [{ kind: "now", key: "now" }, ...linesOf(entries, search.sort, { above: texts.now })]
        : linesOf(entries, search.sort),
    [entries, search.sort, showsSlots],
  );

  const opened = search.batch ?? search.job;
  const [cursor] = useState(() => new Cursor(opened));
  const open = (entry: QueueEntry) =>
    change(entry.is_batch ? { batch: entry.id, job: "" } : { job: entry.id, batch: "" }, !cursor.get());
  const openSlot = (job: SlotJob) =>
    change(job.batch_id ? { batch: job.batch_id, job: job.id } : { job: job.id, batch: "" });
  const select = useSelection(entries, selected, setSelected);
  const chosen = useMemo(() => new Set(selected), [selected]);
  const move = (id: string, neighbor: Neighbor) => {
    const entry = entries.find((each) => each.id === id);
    if (!entry || id === neighbor.other) return;
    found.place(id, neighbor);
    void actions.move({ id, isBatch: entry.is_batch }, neighbor);
  };
  const drag = useEntryDrag(search.sort, move);
  const handlers = useStableHandlers({
    open,
    openItem: (entry, item) => change({ batch: entry.id, job: item.id }),
    select,
    run: (action, entry) => void actions.run(action, targetOfEntry(entry)),
    setPriority: (entry, priority) => void actions.setPriority(targetOfEntry(entry), priority),
    dragStart: drag.start,
    dragOver: drag.over,
    drop: drag.drop,
    dragEnd: drag.end,
  });
  useQueueKeys({ queue, actions, cursor, entries, lines, list, opened, open, select });

  return (
    <>
      <QueueHeader
        queue={queue}
        actions={actions}
        workflowName={entries.find((each) => each.workflow_slug === search.workflow)?.workflow_name ?? undefined}
        onClear={() => setClearing(true)}
      />
      <div className={styles.columns}>
        <div className={styles.column}>
          {!showsSlots && <RunningStrip slots={slots} onOpen={openSlot} />}
          {found.error && !entries.length && <ErrorCard title={found.error.message} />}
          {found.isPending && <LoadingEntries />}
          {lines.length > 0 && (entries.length > 0 || !isFiltered) && (
            <EntryList
              ref={list}
              lines={lines}
              onEnd={() => {
                if (found.hasNextPage && !found.isFetchingNextPage) void found.fetchNextPage();
              }}
              renderNow={() => <RunningNow slots={slots} onOpen={openSlot} />}
            >
              {({ entry }) => (
                <EntryCard
                  entry={entry}
                  cursor={cursor}
                  isSelected={chosen.has(ALL) || chosen.has(selectionId(entry))}
                  canMove={canMove(entry, search.sort)}
                  openJob={entry.id === opened ? search.job : undefined}
                  dropAt={drag.positionAt(entry.id)}
                  handlers={handlers}
                />
              )}
            </EntryList>
          )}
          {found.isDeep && <TopSentinel onTop={found.dropDeepPages} />}
          {found.isSuccess && !entries.length && !found.isPlaceholderData && (
            <NoEntries isFiltered={isFiltered} onShowAll={() => queue.setFilters({})} />
          )}
          <SelectionActions
            selected={selected}
            asked={asked}
            entries={entries}
            hasMore={found.hasNextPage}
            actions={actions}
            onSelect={setSelected}
          />
        </div>
        {opened && (
          <SidePanel
            search={search}
            entry={entries.find((each) => each.id === opened)}
            actions={actions}
            onChange={change}
          />
        )}
      </div>
      <ClearDialog isOpen={isClearing} onClose={() => setClearing(false)} actions={actions} />
      {actions.dialog}
    </>
  );
}

/** Handlers that stay the same on every render, so that memoized cards do not render again. */
function useStableHandlers(handlers: EntryHandlers): EntryHandlers {
  const latest = useLatest(handlers);
  return useMemo(
    () => ({
      open: (...given) => latest.current.open(...given),
      openItem: (...given) => latest.current.openItem(...given),
      select: (...given) => latest.current.select(...given),
      run: (...given) => latest.current.run(...given),
      setPriority: (...given) => latest.current.setPriority(...given),
      dragStart: (...given) => latest.current.dragStart(...given),
      dragOver: (...given) => latest.current.dragOver(...given),
      drop: (...given) => latest.current.drop(...given),
      dragEnd: () => latest.current.dragEnd(),
    }),
    [latest],
  );
}

function NoEntries({ isFiltered, onShowAll }: { isFiltered: boolean; onShowAll: () => void }) {
  return (
    <div className={styles.empty}>
      {isFiltered ? (
        <EmptyState icon={SearchX} title={texts.noMatch} text={texts.noMatchAdvice}>
          <Button onClick={onShowAll}>{texts.showAll}</Button>
        </EmptyState>
      ) : (
        <EmptyState icon={Rows3} title={texts.empty} text={texts.emptyAdvice}>
          <Link to="/create" className={buttonClass({ look: "primary" })}>
            {texts.emptyAction}
          </Link>
        </EmptyState>
      )}
    </div>
  );
}

const NOTHING_OPEN: QueueSearch = {};

interface SidePanelProps {
  search: QueueSearch;
  /** The open entry, if it is loaded. */
  entry: QueueEntry | undefined;
  actions: JobActions;
  onChange: (next: QueueSearch) => void;
}

function SidePanel({ search, entry, actions, onChange }: SidePanelProps) {
  // render the panel after the list, so that moving through the list stays fast
  const { job, batch } = useDeferredValue(search, NOTHING_OPEN);
  const { data: shownJob } = useQuery({ ...jobQuery(search.job ?? ""), enabled: Boolean(search.job) });
  // a batch that is not loaded in the list
  const { data: shownBatch } = useQuery({ ...batchQuery(search.batch ?? ""), enabled: Boolean(search.batch) });
  const name = entry?.label ?? shownBatch?.label ?? (search.job ? jobTexts.title : texts.batch.title);
  return (
    <Inspector
      title={shownJob ? jobTitle(shownJob) : name}
      name={name}
      onClose={() => onChange({ job: "", batch: "" })}
    >
      {job && <JobPanel id={job} actions={actions} />}
      {batch && (
        <BatchPanel
          id={batch}
          job={job}
          counts={entry?.id === batch ? entry.counts : undefined}
          actions={actions}
          onItem={(item) => onChange({ job: item.id })}
        />
      )}
    </Inspector>
  );
}
