import { useQueries, useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { Boxes, Plus, SearchX } from "lucide-react";
import { useMemo, useState } from "react";
import { Button, EmptyState, FilterChip } from "@/kit";
import { Header } from "@/kit/Header";
import { SearchField } from "@/kit/SearchField";
import { console as shared } from "@/texts/console";
import { fleets as texts } from "@/texts/console-fleets";
import { fleets as fleetsQuery, scaling, usage } from "../queries/fleets";
import { LoadingOrError } from "../shared/panels";
import { VirtualTable } from "../shared/VirtualTable";
import styles from "../workers/workers.module.css";
import { COLUMNS, idOf, type Row } from "./columns";
import { NewFleet } from "./NewFleet";
import { isScaled, lastDays, matchesFilter, totalCost } from "./rules";

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
    void navigate({ search: (before) => ({ ...before, ...next }), replace: true });
  const { q, stage } = search;
  const rows = useMemo(
    () =>
      (found ?? [])
        .map((fleet, index): Row => {
          const cost = costs?.find((each) => each.name === fleet.slug && each.stage === fleet.stage);
          return { fleet, scaling: scalings[index], spent: cost ? totalCost(cost) : null };
        })
        .filter((each) => matchesFilter(each.fleet, { q, stage })),
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
        <LoadingOrError error={error} />
      ) : rows.length ? (
        <VirtualTable
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
