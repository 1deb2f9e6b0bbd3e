import { useQueries, useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { Boxes, Plus, SearchX } from "lucide-react";
import { useMemo, useState } from "react";
import { Button, EmptyState, FilterChip } from "@/kit";
import { Header } from "@/kit/Header";
import { SearchField } from "@/kit/SearchField";
import { number } from "@/texts/common";
import { console as shared } from "@/texts/console";
import { fleets as texts } from "@/texts/console-fleets";
import { type Fleet, fleets as fleetsQuery, type Scaling, scaling, usage } from "../data";
import { State, Waiting } from "../parts";
import { type Column, Rows } from "../Rows";
import styles from "../workers/workers.module.css";
import { NewFleet } from "./NewFleet";
import { isScaled, isWanted, lastDays, stateOf, TONES } from "./rules";

interface Row {
  fleet: Fleet;
  scaling: Scaling | undefined;
  spent: number | null;
}

const { columns } = texts;
const idOf = ({ fleet }: Row): string => `${fleet.stage}/${fleet.slug}`;
const none = <span className={styles.quiet}>–</span>;

export const FleetStateOf = ({ fleet, scaling: how }: { fleet: Fleet; scaling: Scaling | undefined }) => {
  const state = stateOf(fleet, how);
  return <State tone={TONES[state]}>{texts.states[state]}</State>;
};

const COLUMNS: readonly Column<Row>[] = [
  {
    id: "name",
    name: columns.name,
    width: "minmax(140px, 1.4fr)",
    show: ({ fleet }) => (
      <span className={styles.name}>
        <Link to="/console/fleets/$stage/$slug" params={{ stage: fleet.stage, slug: fleet.slug }}>
          {fleet.name || fleet.slug}
        </Link>
        <span className={styles.sub}>
          {[fleet.name && fleet.name !== fleet.slug ? fleet.slug : "", shared.stages[fleet.stage] ?? fleet.stage]
            .filter(Boolean)
            .join(" · ")}
        </span>
      </span>
    ),
  },
  {
    id: "state",
    name: columns.state,
    width: "minmax(110px, 0.8fr)",
    show: ({ fleet, scaling: how }) => <FleetStateOf fleet={fleet} scaling={how} />,
  },
  {
    id: "workers",
    name: columns.workers,
    width: "64px",
    isEnd: true,
    show: ({ fleet }) => number.format(fleet.workers),
  },
  {
    id: "machines",
    name: columns.machines,
    width: "84px",
    isEnd: true,
    from: "medium",
    show: ({ scaling: how }) => (how ? texts.ofMost(how.machines.length, how.max_machines) : none),
  },
  {
    id: "desired",
    name: columns.desired,
    width: "70px",
    isEnd: true,
    from: "medium",
    show: ({ scaling: how }) => (how?.decision ? number.format(how.decision.desired) : none),
  },
  {
    id: "queued",
    name: columns.queued,
    width: "70px",
    isEnd: true,
    from: "medium",
    show: ({ scaling: how }) => (how ? number.format(how.queued_jobs) : none),
  },
  {
    id: "cost",
    name: columns.cost,
    width: "90px",
    isEnd: true,
    from: "wide",
    show: ({ scaling: how }) => (how ? shared.money(how.spent_per_hour) : none),
  },
  {
    id: "spent",
    name: columns.spent,
    width: "90px",
    isEnd: true,
    from: "wide",
    show: ({ spent }) => (spent === null ? none : shared.money(spent)),
  },
  {
    id: "workflows",
    name: columns.workflows,
    width: "minmax(100px, 1.2fr)",
    from: "wide",
    show: ({ fleet }) => (
      <span className={styles.quiet} title={fleet.workflow_slugs.join(", ")}>
        {fleet.workflow_slugs.join(", ")}
      </span>
    ),
  },
];

const DAYS = 30;

export default function FleetsPage() {
  const search = useSearch({ from: "/console/fleets" });
  const navigate = useNavigate({ from: "/console/fleets" });
  const { data: found, error } = useQuery(fleetsQuery);
  const { from, to } = lastDays(DAYS);
  const { data: costs } = useQuery(usage("fleet", from, to));
  const scalings = useQueries({
    queries: (found ?? []).map((each) => ({ ...scaling(each.stage, each.slug), enabled: isScaled(each) })),
    combine: (answers) => answers.map((each) => each.data),
  });
  const [current, setCurrent] = useState<string | null>(null);
  const change = (next: Partial<typeof search>) =>
    void navigate({ search: (before) => ({ ...before, ...next }) as never, replace: true });
  const { q, stage } = search;
  const rows = useMemo(
    () =>
      (found ?? [])
        .map((fleet, index): Row => {
          const cost = costs?.find((each) => each.name === fleet.slug && each.stage === fleet.stage);
          return { fleet, scaling: scalings[index], spent: cost ? (cost.machine_cost ?? cost.cost) : null };
        })
        .filter((each) => isWanted(each.fleet, { q, stage })),
    [found, scalings, costs, q, stage],
  );
  return (
    <div className={styles.page}>
      <Header
        title={shared.pages.fleets}
        search={<SearchField value={q ?? ""} placeholder={texts.search} onChange={(next) => change({ q: next })} />}
        actions={
          <Button look="primary" icon={Plus} onClick={() => change({ open: "new" })}>
            {texts.make}
          </Button>
        }
      >
        <FilterChip isOn={!stage} onClick={() => change({ stage: "" })}>
          {shared.all}
        </FilterChip>
        {Object.entries(shared.stages).map(([value, name]) => (
          <FilterChip
            key={value}
            isOn={stage === value}
            onClick={() => change({ stage: stage === value ? "" : value })}
          >
            {name}
          </FilterChip>
        ))}
      </Header>
      {!found ? (
        <Waiting error={error} />
      ) : rows.length ? (
        <Rows
          name={texts.list}
          rows={rows}
          columns={COLUMNS}
          keyOf={idOf}
          current={current}
          onCurrent={(row) => setCurrent(idOf(row))}
          onOpen={({ fleet }) =>
            void navigate({ to: "/console/fleets/$stage/$slug", params: { stage: fleet.stage, slug: fleet.slug } })
          }
          rowHeight={52}
        />
      ) : (
        <div className={styles.empty}>
          {found.length ? (
            <EmptyState icon={SearchX} title={texts.noMatch} text={texts.noMatchAdvice} />
          ) : (
            <EmptyState icon={Boxes} title={texts.empty} text={texts.emptyAdvice}>
              <Button look="primary" icon={Plus} onClick={() => change({ open: "new" })}>
                {texts.make}
              </Button>
            </EmptyState>
          )}
        </div>
      )}
      <NewFleet isOpen={search.open === "new"} onClose={() => change({ open: "" })} />
    </div>
  );
}
