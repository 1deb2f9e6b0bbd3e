import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { ListOrdered, SearchX } from "lucide-react";
import { useCallback, useMemo, useState } from "react";
import { workerMessage } from "@/jobs/errors";
import { Button, Chip, EmptyState, FilterChip, Progress, Select } from "@/kit";
import { Checkbox } from "@/kit/Checkbox";
import { Combobox } from "@/kit/Combobox";
import { Header } from "@/kit/Header";
import { SearchField } from "@/kit/SearchField";
import { useKeys } from "@/lib/keyboard";
import { common } from "@/texts/common";
import { console as shared } from "@/texts/console";
import { dispatches as texts } from "@/texts/console-dispatches";
import { effects as effectsQuery } from "../catalogue/queries";
import { type Dispatch, dispatches as dispatchesQuery } from "../queries/dispatches";
import { workflowNames } from "../queries/workflow-names";
import { PeriodFilter, TypedFilter } from "../shared/filters";
import { LoadingOrError, TimeAgo, useNow } from "../shared/panels";
import { type Column, VirtualTable } from "../shared/VirtualTable";
import { percentOf, progressPart } from "../workers/rules";
import styles from "./dispatches.module.css";
import { DispatchPanel } from "./Panel";
import { dispatchTime, parseDispatchesQuery, STATUSES } from "./rules";
import { SelectedActions } from "./SelectedActions";
import { DispatchStatus } from "./StatusOf";

const ANY = "-";
const { columns } = texts;

function Time({ dispatch }: { dispatch: Dispatch }) {
  return dispatchTime(dispatch, useNow());
}

const columnsFor = (
  open: (id: string) => void,
  selected: ReadonlySet<number>,
  select: (id: number, isOn: boolean) => void,
): readonly Column<Dispatch>[] => [
  {
    id: "selected",
    name: "",
    width: "28px",
    show: ({ id }) => (
      <Checkbox isOn={selected.has(id)} name={texts.select(id)} onChange={(isOn) => select(id, isOn)} />
    ),
  },
  {
    id: "id",
    name: columns.id,
    width: "minmax(44px, 0.5fr)",
    show: ({ id }) => (
      <button type="button" className={styles.id} onClick={() => open(String(id))}>
        {id}
      </button>
    ),
  },
  { id: "status", name: columns.status, width: "92px", show: ({ status }) => <DispatchStatus status={status} /> },
  {
    id: "workflow",
    name: columns.workflow,
    width: "minmax(0, 1.4fr)",
    show: (dispatch) => (
      <span className={styles.two}>
        <span title={dispatch.workflow_slug}>{dispatch.workflow_slug}</span>
        {dispatch.status === "leased" && (
          <Progress
            value={progressPart(dispatch)}
            name={[texts.progress, percentOf(dispatch)].filter(Boolean).join(", ")}
          />
        )}
        {dispatch.last_error && dispatch.status !== "completed" && (
          <span className={styles.error} title={workerMessage(dispatch.last_error)}>
            {workerMessage(dispatch.last_error)}
          </span>
        )}
      </span>
    ),
  },
  {
    id: "worker",
    name: columns.worker,
    width: "minmax(90px, 0.9fr)",
    from: "medium",
    show: ({ worker_id, last_worker_id }) => (
      <span className={worker_id ? undefined : styles.quiet}>{worker_id ?? last_worker_id ?? "–"}</span>
    ),
  },
  {
    id: "attempts",
    name: columns.attempts,
    width: "76px",
    isRightAligned: true,
    from: "wide",
    show: ({ attempts, max_attempts }) => texts.attemptsOf(attempts, max_attempts),
  },
  {
    id: "priority",
    name: columns.priority,
    width: "64px",
    isRightAligned: true,
    from: "wide",
    show: ({ priority }) => priority,
  },
  {
    id: "time",
    name: columns.time,
    width: "104px",
    isRightAligned: true,
    from: "medium",
    show: (dispatch) => <Time dispatch={dispatch} />,
  },
  {
    id: "created",
    name: columns.created,
    width: "76px",
    isRightAligned: true,
    show: ({ created_at }) => <TimeAgo at={created_at} />,
  },
];

export default function DispatchesPage() {
  const search = useSearch({ from: "/console/dispatches" });
  const navigate = useNavigate({ from: "/console/dispatches" });
  const asked = parseDispatchesQuery(search);
  const found = useInfiniteQuery(dispatchesQuery(asked));
  const { data: workflows } = useQuery(workflowNames);
  const { data: effects } = useQuery(effectsQuery);
  const [stepValue, setStepped] = useState<string | null>(null);
  const change = useCallback(
    (next: Partial<typeof search>) => void navigate({ search: (before) => ({ ...before, ...next }), replace: true }),
    [navigate],
  );
  const rows = useMemo(() => found.data?.pages.flatMap((each) => each.items) ?? [], [found.data]);
  const open = useCallback(
    (id: string) => {
      setStepped(id);
      change({ open: id });
    },
    [change],
  );
  const [selected, setSelected] = useState<ReadonlySet<number>>(new Set());
  const select = useCallback((id: number, isOn: boolean) => {
    setSelected((before) => new Set(isOn ? [...before, id] : [...before].filter((each) => each !== id)));
  }, []);
  const shownColumns = useMemo(() => columnsFor(open, selected, select), [open, selected, select]);
  // only rows that are still listed
  const chosen = rows.map(({ id }) => id).filter((id) => selected.has(id));
  useKeys(
    search.open ? [{ keys: "Escape", name: common.close, group: texts.list, run: () => change({ open: "" }) }] : [],
  );
  const { status, stage, workflow, worker, tenant, effect, user } = search;
  // a slow filter may return an empty page with a cursor
  const more = () => {
    if (found.hasNextPage && !found.isFetchingNextPage) void found.fetchNextPage();
  };
  return (
    <div className={styles.page}>
      <Header
        title={shared.pages.dispatches}
        search={<SearchField value={search.q ?? ""} placeholder={texts.search} onChange={(q) => change({ q })} />}
      >
        <FilterChip isOn={!status} onClick={() => change({ status: "" })}>
          {shared.all}
        </FilterChip>
        {STATUSES.map((each) => (
          <FilterChip key={each} isOn={status === each} onClick={() => change({ status: status === each ? "" : each })}>
            {texts.statuses[each]}
          </FilterChip>
        ))}
        <span className={styles.select}>
          <Combobox
            aria-label={texts.filterWorkflow}
            value={workflow ?? ANY}
            choices={[
              { value: ANY, name: shared.any.workflow },
              ...(workflows ?? []).map(({ slug, name }) => ({ value: slug, name: name || slug })),
            ]}
            onChange={(value) => change({ workflow: value === ANY ? "" : value })}
          />
        </span>
        <span className={styles.select}>
          <Select
            aria-label={texts.filterStage}
            value={stage ?? ANY}
            choices={[
              { value: ANY, name: shared.any.stage },
              ...Object.entries(shared.stages).map(([value, name]) => ({ value, name })),
            ]}
            onChange={(value) => change({ stage: value === ANY ? "" : value })}
          />
        </span>
        <span className={styles.select}>
          <Combobox
            aria-label={texts.filterEffect}
            value={effect ?? ANY}
            choices={[
              { value: ANY, name: texts.anyEffect },
              ...(effects ?? []).map(({ slug, name }) => ({ value: slug, name: name || slug })),
            ]}
            onChange={(value) => change({ effect: value === ANY ? "" : value })}
          />
        </span>
        <TypedFilter
          name={texts.filterUser}
          type="email"
          value={user ?? ""}
          onChange={(next) => change({ user: next.trim() })}
        />
        <PeriodFilter period={search} onChange={change} />
        {worker && <Chip onRemove={() => change({ worker: "" })}>{texts.worker(worker)}</Chip>}
        {tenant && <Chip onRemove={() => change({ tenant: "" })}>{texts.tenant(tenant)}</Chip>}
      </Header>
      <div className={styles.columns}>
        <div className={styles.list}>
          {!found.data ? (
            <LoadingOrError error={found.error} />
          ) : rows.length ? (
            <VirtualTable
              name={texts.list}
              rows={rows}
              columns={shownColumns}
              keyOf={(row) => String(row.id)}
              current={stepValue ?? search.open ?? null}
              onCurrent={(row) => {
                setStepped(String(row.id));
                // the open panel follows
                if (search.open) change({ open: String(row.id) });
              }}
              onOpen={(row) => open(String(row.id))}
              onEnd={more}
              rowHeight={52}
            />
          ) : found.hasNextPage ? (
            <div className={styles.empty}>
              <Button isBusy={found.isFetchingNextPage} onClick={more}>
                {shared.showMore}
              </Button>
            </div>
          ) : (
            <div className={styles.empty}>
              {Object.keys(asked).length ? (
                <EmptyState icon={SearchX} title={texts.noMatch} text={texts.noMatchAdvice}>
                  <Button onClick={() => void navigate({ search: {}, replace: true })}>{texts.showAll}</Button>
                </EmptyState>
              ) : (
                <EmptyState icon={ListOrdered} title={texts.empty} text={texts.emptyAdvice} />
              )}
            </div>
          )}
        </div>
        <SelectedActions ids={chosen} onClear={() => setSelected(new Set())} />
        {search.open && <DispatchPanel key={search.open} id={search.open} onClose={() => change({ open: "" })} />}
      </div>
    </div>
  );
}
