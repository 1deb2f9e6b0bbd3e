import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { Cpu, Plus, SearchX } from "lucide-react";
import { useMemo, useState } from "react";
import { Button, EmptyState, FilterChip, Select } from "@/kit";
import { Header } from "@/kit/Header";
import { SearchField } from "@/kit/SearchField";
import { console as shared } from "@/texts/console";
import { workers as texts } from "@/texts/console-workers";
import { fleets as fleetsQuery } from "../queries/fleets";
import { workers as workersQuery } from "../queries/workers";
import { LoadingOrError } from "../shared/panels";
import { VirtualTable } from "../shared/VirtualTable";
import { AddWorker } from "./AddWorker";
import { COLUMNS } from "./columns";
import { parseWorkersQuery, STATES } from "./rules";
import styles from "./workers.module.css";

const ANY = "-";

export default function WorkersPage() {
  const search = useSearch({ from: "/console/workers" });
  const navigate = useNavigate({ from: "/console/workers" });
  const { data, error, hasNextPage, isFetchingNextPage, fetchNextPage } = useInfiniteQuery(
    workersQuery(parseWorkersQuery(search)),
  );
  const { data: fleets } = useQuery(fleetsQuery);
  const [current, setCurrent] = useState<string | null>(null);
  const change = (next: Partial<typeof search>) =>
    void navigate({ search: (before) => ({ ...before, ...next }), replace: true });

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
        <LoadingOrError error={error} />
      ) : rows.length ? (
        <VirtualTable
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
