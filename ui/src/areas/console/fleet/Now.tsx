import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Table } from "@/kit/Table";
import { duration, number } from "@/texts/common";
import { console as shared } from "@/texts/console";
import { fleet as words } from "@/texts/console-fleets";
import { isScaled } from "../fleets/rules";
import { type Fleet, fleetMetrics, type Scaling, scaling } from "../queries/fleets";
import { Panel, State, TimeOfDay, type Tone } from "../shared/panels";
import styles from "./fleet.module.css";

const { now: texts, machine: machineTexts, workflow: workflowTexts } = words;
const TONES: Readonly<Record<string, Tone>> = { booting: "info", ready: "muted", busy: "good", draining: "warn" };

type Machine = Scaling["machines"][number];

function machineActivity(machine: Machine): string {
  if (machine.state === "booting") return machineTexts.booting(machine.boot_seconds_left);
  if (machine.leases > 0) return machineTexts.busy(machine.busy_seconds_left);
  return machineTexts.idle(machine.idle_seconds);
}

function Metrics({ name, metrics }: { name: string; metrics: readonly [string, string][] }) {
  return (
    <section className={styles.group} aria-label={name}>
      <h2>{name}</h2>
      <dl className={styles.figures}>
        {metrics.map(([each, value]) => (
          <div key={each}>
            <dt>{each}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

/** Load and machines of the fleet. Jobs can run on any fleet of the stage, so queue metrics cover all fleets. */
export function Now({ fleet }: { fleet: Fleet }) {
  const { data: metrics } = useQuery(fleetMetrics(fleet.stage, fleet.slug));
  const { data: how } = useQuery(scaling(fleet.stage, fleet.slug));
  const isManaged = isScaled(fleet);
  const own: [string, string][] = [[texts.running, metrics ? number.format(metrics.leases) : "–"]];
  const allFleets: [string, string][] = [
    [texts.queued, metrics ? number.format(metrics.queued) : "–"],
    [texts.oldest, metrics?.oldest_age_seconds != null ? duration(metrics.oldest_age_seconds) : "–"],
    [texts.done, metrics ? number.format(metrics.completed) : "–"],
    [texts.failed, metrics ? number.format(metrics.failed) : "–"],
    [texts.mean, metrics?.mean_duration_seconds != null ? duration(metrics.mean_duration_seconds) : "–"],
  ];
  if (isManaged && how) {
    const spent = shared.cost(how.spent_per_hour, how.machines.length);
    own.push(
      [texts.desired, how.decision ? number.format(how.decision.desired) : "–"],
      [texts.spent, how.cost_per_hour === null ? spent : texts.spentOf(spent, shared.money(how.cost_per_hour))],
    );
  }
  return (
    <div className={styles.column}>
      <Metrics name={texts.own} metrics={own} />
      <Metrics name={texts.together(shared.stages[fleet.stage] ?? fleet.stage)} metrics={allFleets} />
      {isManaged && how?.decision && (
        <Panel title={texts.lastDecision} aside={<TimeOfDay at={how.decision.created_at} />}>
          <p className={styles.reason}>{how.decision.reason}</p>
          <p className={styles.quiet}>
            {texts.leader}: {how.leader ?? texts.noLeader}
          </p>
        </Panel>
      )}
      <Panel
        title={texts.machines}
        aside={
          <Link to="/console/workers" search={{ fleet: fleet.slug, stage: fleet.stage }} className={styles.link}>
            {texts.showWorkers} ({number.format(fleet.workers)})
          </Link>
        }
      >
        {!isManaged ? (
          <p className={styles.quiet}>{texts.byHand}</p>
        ) : how && how.machines.length === 0 ? (
          <p className={styles.quiet}>{texts.noMachines}</p>
        ) : (
          <Table
            name={texts.machines}
            rows={how?.machines ?? []}
            keyOf={(each) => each.id}
            columns={[
              { id: "id", name: machineTexts.id, show: (each) => each.id, sort: (each) => each.id },
              {
                id: "state",
                name: machineTexts.state,
                show: (each) => (
                  <State tone={TONES[each.state] ?? "muted"}>{machineTexts.states[each.state] ?? each.state}</State>
                ),
                sort: (each) => each.state,
              },
              { id: "activity", name: machineTexts.activity, show: machineActivity },
              { id: "type", name: machineTexts.type, show: (each) => each.instance_type ?? "–" },
              {
                id: "jobs",
                name: machineTexts.jobs,
                align: "end",
                show: (each) => `${each.leases} / ${each.slots}`,
                sort: (each) => each.leases,
              },
              {
                id: "price",
                name: machineTexts.price,
                align: "end",
                show: (each) => shared.money(each.price_per_hour),
                sort: (each) => each.price_per_hour,
              },
              {
                id: "age",
                name: machineTexts.age,
                align: "end",
                show: (each) => duration(each.age_seconds),
                sort: (each) => each.age_seconds,
              },
            ]}
          />
        )}
      </Panel>
      {metrics && metrics.workflows.length > 0 && (
        <Panel title={texts.perWorkflow}>
          <Table
            name={texts.perWorkflow}
            rows={metrics.workflows}
            keyOf={(each) => each.workflow_slug}
            columns={[
              {
                id: "name",
                name: workflowTexts.name,
                show: (each) => (
                  <Link to="/console/dispatches" search={{ workflow: each.workflow_slug }}>
                    {each.workflow_slug}
                  </Link>
                ),
                sort: (each) => each.workflow_slug,
              },
              {
                id: "queued",
                name: workflowTexts.queued,
                align: "end",
                show: (each) => number.format(each.queued),
                sort: (each) => each.queued,
              },
              {
                id: "done",
                name: workflowTexts.done,
                align: "end",
                show: (each) => number.format(each.completed),
                sort: (each) => each.completed,
              },
              {
                id: "failed",
                name: workflowTexts.failed,
                align: "end",
                show: (each) => number.format(each.failed),
                sort: (each) => each.failed,
              },
              {
                id: "mean",
                name: workflowTexts.mean,
                align: "end",
                show: (each) => (each.mean_duration_seconds === null ? "–" : duration(each.mean_duration_seconds)),
                sort: (each) => each.mean_duration_seconds ?? 0,
              },
            ]}
          />
        </Panel>
      )}
    </div>
  );
}
