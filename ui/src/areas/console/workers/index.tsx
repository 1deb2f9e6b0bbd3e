import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { Cpu, Plus, SearchX } from "lucide-react";
import { useMemo, useState } from "react";
import { Button, EmptyState, FilterChip, Progress, Select } from "@/kit";
import { Header } from "@/kit/Header";
import { SearchField } from "@/kit/SearchField";
import { size } from "@/texts/common";
import { console as shared } from "@/texts/console";
import { workers as texts } from "@/texts/console-workers";
import { fleets as fleetsQuery, type Worker, workers as workersQuery } from "../data";
import { Seen, State, useNow, Waiting } from "../parts";
import { type Column, Rows } from "../Rows";
import { AddWorker } from "./AddWorker";
import { askedBy, atOf, inOrder, nameOf, partOf, STATES, toneOf } from "./rules";
import styles from "./workers.module.css";

const ANY = "-";
const { columns } = texts;

const COLUMNS: readonly Column<Worker>[] = [
  {
    id: "name",
    name: columns.name,
    width: "minmax(150px, 1.4fr)",
    isSortable: true,
    show: (worker) => <Name worker={worker} />,
  },
  {
    id: "state",
    name: columns.state,
    width: "104px",
    isSortable: true,
    show: (worker) => <StateOf state={worker.state} />,
  },
  {
    id: "fleet",
    name: columns.fleet,
    width: "minmax(90px, 0.8fr)",
    from: "medium",
    isSortable: true,
    show: (worker) => (
      <span className={styles.two}>
        <span>{worker.fleet_slug}</span>
        <span className={styles.sub}>
          {[shared.stages[worker.stage] ?? worker.stage, worker.capacity_type === "spot" ? texts.spot : ""]
            .filter(Boolean)
            .join(" · ")}
        </span>
      </span>
    ),
  },
  {
    id: "gpu",
    name: columns.gpu,
    width: "minmax(120px, 1fr)",
    from: "wide",
    isSortable: true,
    show: (worker) => <GpuOf worker={worker} />,
  },
  {
    id: "now",
    name: columns.now,
    width: "minmax(140px, 1.6fr)",
    from: "medium",
    show: (worker) => <Now worker={worker} />,
  },
  {
    id: "version",
    name: columns.version,
    width: "90px",
    from: "wide",
    isSortable: true,
    show: (worker) => <span className={styles.quiet}>{worker.version ?? shared.unknown}</span>,
  },
  {
    id: "seen",
    name: columns.seen,
    width: "84px",
    isEnd: true,
    isSortable: true,
    show: (worker) => <Seen at={worker.last_seen_at} />,
  },
];

export const StateOf = ({ state }: { state: string }) => (
  <State tone={toneOf(state)} isBreathing={state === "busy"}>
    {texts.states[state] ?? state}
  </State>
);

function Name({ worker }: { worker: Worker }) {
  const name = nameOf(worker);
  return (
    <span className={styles.name}>
      <Link to="/console/workers/$id" params={{ id: worker.worker_id }} title={worker.worker_id}>
        {name}
      </Link>
      <span className={styles.sub}>
        {[name === worker.worker_id ? "" : worker.worker_id, worker.instance_type].filter(Boolean).join(" · ")}
      </span>
      <span className={styles.narrow}>
        <Brief worker={worker} />
      </span>
    </span>
  );
}

/** Where there is no room for more. */
function Brief({ worker }: { worker: Worker }) {
  const now = useNow();
  const [job] = inOrder(worker.jobs);
  const part = job ? partOf(job) : null;
  const { text } = atOf(worker, now);
  return (
    text ||
    [worker.gpus[0]?.name, job?.workflow_slug, part === null ? "" : texts.percent(part)].filter(Boolean).join(" · ")
  );
}

function GpuOf({ worker: { gpus } }: { worker: Worker }) {
  const [first] = gpus;
  if (!first?.name) return <span className={styles.quiet}>{shared.unknown}</span>;
  const more = gpus.length - 1;
  return (
    <span className={styles.two}>
      <span title={first.name}>
        {first.name}
        {more > 0 && ` ${texts.more(more)}`}
      </span>
      {first.memory_total ? (
        <span className={styles.sub}>{texts.memory(size(first.memory_used ?? 0), size(first.memory_total))}</span>
      ) : null}
    </span>
  );
}

function Now({ worker }: { worker: Worker }) {
  const now = useNow();
  const [job, ...more] = inOrder(worker.jobs);
  const { text, tone } = atOf(worker, now);
  if (!job || tone === "bad") {
    return (
      <span className={styles.at} data-tone={tone} title={text}>
        {text}
      </span>
    );
  }
  const part = partOf(job);
  return (
    <span className={styles.job}>
      <span>
        {job.workflow_slug} {more.length > 0 && texts.more(more.length)}{" "}
        {text && (
          <span className={styles.at} data-tone={tone}>
            {text}
          </span>
        )}
      </span>
      <span className={styles.percent}>{part === null ? texts.starting : texts.percent(part)}</span>
      <Progress value={part} name={texts.progress(job.workflow_slug)} />
    </span>
  );
}

export default function WorkersPage() {
  const search = useSearch({ from: "/console/workers" });
  const navigate = useNavigate({ from: "/console/workers" });
  const { data, error, hasNextPage, isFetchingNextPage, fetchNextPage } = useInfiniteQuery(
    workersQuery(askedBy(search)),
  );
  const { data: fleets } = useQuery(fleetsQuery);
  const [current, setCurrent] = useState<string | null>(null);
  const change = (next: Partial<typeof search>) =>
    void navigate({ search: (before) => ({ ...before, ...next }) as never, replace: true });

  const { status, fleet, stage, q } = search;
  const rows = useMemo(() => data?.pages.flatMap((each) => each.items) ?? [], [data]);
  const counts = data?.pages[0]?.counts ?? {};
  const more = () => {
    if (hasNextPage && !isFetchingNextPage) void fetchNextPage();
  };
  const total = Object.values(counts).reduce((sum, each) => sum + each, 0);
  const isAdding = search.open === "add";
  const slugs = [...new Set((fleets ?? []).map((each) => each.slug))];

  return (
    <div className={styles.page}>
      <Header
        title={shared.pages.workers}
        search={<SearchField value={search.q ?? ""} placeholder={texts.search} onChange={(q) => change({ q })} />}
        actions={
          <Button look="primary" icon={Plus} onClick={() => change({ open: "add" })}>
            {texts.add}
          </Button>
        }
      >
        <FilterChip isOn={!status} count={total} onClick={() => change({ status: "" })}>
          {shared.all}
        </FilterChip>
        {STATES.filter((each) => counts[each] || status === each).map((each) => (
          <FilterChip
            key={each}
            isOn={status === each}
            count={counts[each] ?? 0}
            onClick={() => change({ status: status === each ? "" : each })}
          >
            {texts.states[each]}
          </FilterChip>
        ))}
        {slugs.length > 1 && (
          <span className={styles.select}>
            <Select
              aria-label={texts.filterFleet}
              value={fleet ?? ANY}
              choices={[{ value: ANY, name: shared.any.fleet }, ...slugs.map((value) => ({ value }))]}
              onChange={(value) => change({ fleet: value === ANY ? "" : value })}
            />
          </span>
        )}
        {new Set((fleets ?? []).map((each) => each.stage)).size > 1 && (
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
        )}
      </Header>
      {!data ? (
        <Waiting error={error} />
      ) : rows.length ? (
        <Rows
          name={texts.list}
          rows={rows}
          columns={COLUMNS}
          keyOf={(row) => row.worker_id}
          current={current}
          onCurrent={(row) => setCurrent(row.worker_id)}
          onOpen={(row) => void navigate({ to: "/console/workers/$id", params: { id: row.worker_id } })}
          sort={search.sort}
          onSort={(sort) => change({ sort })}
          onEnd={more}
          rowHeight={52}
        />
      ) : (
        <div className={styles.empty}>
          {total || fleet || stage || q ? (
            <EmptyState icon={SearchX} title={texts.noMatch} text={texts.noMatchAdvice}>
              <Button onClick={() => change({ q: "", status: "", fleet: "", stage: "" })}>{texts.showAll}</Button>
            </EmptyState>
          ) : (
            <EmptyState icon={Cpu} title={texts.empty} text={texts.emptyAdvice}>
              <Button look="primary" icon={Plus} onClick={() => change({ open: "add" })}>
                {texts.add}
              </Button>
            </EmptyState>
          )}
        </div>
      )}
      <AddWorker isOpen={isAdding} fleet={search.fleet} onClose={() => change({ open: "" })} />
    </div>
  );
}
