import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Progress } from "@/kit";
import { Segmented } from "@/kit/Segmented";
import { Table } from "@/kit/Table";
import { number } from "@/texts/common";
import { fleet as words } from "@/texts/console-fleets";
import { lastDays, runCost, totalCost } from "../fleets/rules";
import { type Fleet, usage } from "../queries/fleets";
import { LoadingOrError, Panel } from "../shared/panels";
import styles from "./fleet.module.css";

const { costs: texts } = words;
const RANGES = [1, 7, 30];

export function Costs({ fleet }: { fleet: Fleet }) {
  const [days, setDays] = useState(30);
  const { from, to } = lastDays(days);
  const { data, error } = useQuery(usage("fleet", from, to));
  const { data: workflows } = useQuery(usage("workflow", from, to));
  const own = data?.find((each) => each.name === fleet.slug && each.stage === fleet.stage);
  const parts = own
    ? ([
        ["completed", texts.busy, own.busy_seconds],
        ["failed", texts.lost, own.lost_seconds],
        ["paused", texts.boot, own.boot_seconds ?? 0],
        ["waiting", texts.idle, own.idle_seconds ?? 0],
      ] as const)
    : [];
  const all = parts.reduce((sum, [, , seconds]) => sum + seconds, 0);
  const mapped = (workflows ?? []).filter((each) => fleet.workflow_slugs.includes(each.name));
  return (
    <div className={styles.column}>
      <Segmented
        name={texts.range}
        value={String(days)}
        choices={RANGES.map((each) => ({ value: String(each), name: texts.last(each) }))}
        onChange={(value) => setDays(Number(value))}
      />
      {!data ? (
        <LoadingOrError error={error} />
      ) : own ? (
        <>
          <dl className={styles.figures}>
            <div>
              <dt>{texts.jobs}</dt>
              <dd>{number.format(own.jobs)}</dd>
            </div>
            <div>
              <dt>{texts.total}</dt>
              <dd>{own.machine_cost === null ? "–" : totalCost(own)}</dd>
            </div>
            <div>
              <dt>{texts.cost}</dt>
              <dd>{runCost(own)}</dd>
            </div>
            <div>
              <dt>{texts.perJob}</dt>
              <dd>{own.jobs ? totalCost(own, own.jobs) : "–"}</dd>
            </div>
          </dl>
          {all > 0 && (
            <Panel title={texts.split}>
              <Progress
                name={texts.split}
                parts={parts.map(([status, , seconds]) => ({ status, part: seconds / all }))}
              />
              <ul className={styles.split}>
                {parts.map(([status, name, seconds]) => (
                  <li key={status} data-status={status}>
                    <span className={styles.swatch} aria-hidden />
                    {name} <strong>{texts.hours(seconds)}</strong>
                  </li>
                ))}
              </ul>
            </Panel>
          )}
        </>
      ) : (
        <p className={styles.quiet}>{texts.empty}</p>
      )}
      {mapped.length > 0 && (
        <Panel title={texts.byWorkflow}>
          <Table
            name={texts.byWorkflow}
            rows={mapped}
            keyOf={(each) => each.name}
            columns={[
              { id: "name", name: words.workflow.name, show: (each) => each.name, sort: (each) => each.name },
              {
                id: "jobs",
                name: texts.jobs,
                align: "end",
                show: (each) => number.format(each.jobs),
                sort: (each) => each.jobs,
              },
              {
                id: "busy",
                name: texts.busy,
                align: "end",
                show: (each) => texts.hours(each.busy_seconds),
                sort: (each) => each.busy_seconds,
              },
              {
                id: "lost",
                name: texts.lost,
                align: "end",
                show: (each) => texts.hours(each.lost_seconds),
                sort: (each) => each.lost_seconds,
              },
              {
                id: "cost",
                name: texts.cost,
                align: "end",
                show: runCost,
                sort: (each) => each.cost,
              },
            ]}
          />
        </Panel>
      )}
    </div>
  );
}
