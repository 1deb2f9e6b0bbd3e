import { useInfiniteQuery } from "@tanstack/react-query";
import { Button } from "@/kit";
import { Table } from "@/kit/Table";
import { duration, number } from "@/texts/common";
import { console as shared } from "@/texts/console";
import { fleet as words } from "@/texts/console-fleets";
import { type EndedMachine, endedMachines, type Fleet } from "../queries/fleets";
import { LoadingOrError, Panel, TimeOfDay } from "../shared/panels";
import styles from "./fleet.module.css";

const { ended: texts } = words;

const secondsBetween = (from: string, to: string): number => (Date.parse(to) - Date.parse(from)) / 1000;

const readyAfter = ({ ordered_at, registered_at }: EndedMachine): string =>
  registered_at === null ? texts.never : duration(secondsBetween(ordered_at, registered_at));

/** History of the machines that were launched for the fleet. */
export function EndedMachines({ fleet }: { fleet: Fleet }) {
  const found = useInfiniteQuery(endedMachines(fleet.stage, fleet.slug));
  const items = found.data?.pages.flatMap((page) => page.items);
  return (
    <Panel title={texts.title}>
      {!items && <LoadingOrError error={found.error} />}
      {items?.length === 0 && <p className={styles.quiet}>{texts.empty}</p>}
      {items !== undefined && items.length > 0 && (
        <Table
          name={texts.title}
          rows={items}
          keyOf={(machine) => `${machine.id} ${machine.ordered_at}`}
          columns={[
            { id: "id", name: texts.id, show: (machine) => machine.id },
            { id: "ordered", name: texts.ordered, show: (machine) => <TimeOfDay at={machine.ordered_at} /> },
            { id: "ready", name: texts.ready, align: "end", show: readyAfter },
            { id: "ended", name: texts.at, show: (machine) => <TimeOfDay at={machine.ended_at} /> },
            {
              id: "lasted",
              name: texts.lasted,
              align: "end",
              show: (machine) => duration(secondsBetween(machine.ordered_at, machine.ended_at)),
            },
            { id: "reason", name: texts.reason, show: (machine) => texts.why(machine.reason) },
            { id: "type", name: texts.type, show: (machine) => machine.instance_type ?? "–" },
            { id: "jobs", name: texts.jobs, align: "end", show: (machine) => number.format(machine.jobs) },
            {
              id: "cost",
              name: texts.cost,
              align: "end",
              show: (machine) => shared.cost(machine.cost ?? 0, secondsBetween(machine.ordered_at, machine.ended_at)),
            },
          ]}
        />
      )}
      {found.hasNextPage && (
        <Button size="small" isBusy={found.isFetchingNextPage} onClick={() => void found.fetchNextPage()}>
          {shared.showMore}
        </Button>
      )}
    </Panel>
  );
}
