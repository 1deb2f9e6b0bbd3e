import { Link } from "@tanstack/react-router";
import { number } from "@/texts/common";
import { console as shared } from "@/texts/console";
import { fleets as texts } from "@/texts/console-fleets";
import type { Fleet, Scaling } from "../queries/fleets";
import type { Column } from "../shared/VirtualTable";
import styles from "../workers/workers.module.css";
import { FleetStateBadge } from "./FleetStateBadge";

export interface Row {
  fleet: Fleet;
  scaling: Scaling | undefined;
  spent: string | null;
}

export const columns = texts.columns;

export const idOf = ({ fleet }: Row): string => `${fleet.stage}/${fleet.slug}`;

const none = <span className={styles.quiet}>–</span>;

export const COLUMNS: readonly Column<Row>[] = [
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
    show: ({ fleet, scaling: how }) => <FleetStateBadge fleet={fleet} scaling={how} />,
  },
  {
    id: "workers",
    name: columns.workers,
    width: "64px",
    isRightAligned: true,
    show: ({ fleet }) => number.format(fleet.workers),
  },
  {
    id: "machines",
    name: columns.machines,
    width: "84px",
    isRightAligned: true,
    from: "medium",
    show: ({ scaling: how }) => (how ? texts.ofMax(how.machines.length, how.max_machines) : none),
  },
  {
    id: "desired",
    name: columns.desired,
    width: "70px",
    isRightAligned: true,
    from: "medium",
    show: ({ scaling: how }) => (how?.decision ? number.format(how.decision.desired) : none),
  },
  {
    id: "queued",
    name: columns.queued,
    width: "70px",
    isRightAligned: true,
    from: "medium",
    show: ({ scaling: how }) => (how ? number.format(how.queued_jobs) : none),
  },
  {
    id: "cost",
    name: columns.cost,
    width: "90px",
    isRightAligned: true,
    from: "wide",
    show: ({ scaling: how }) => (how ? shared.cost(how.spent_per_hour, how.machines.length) : none),
  },
  {
    id: "spent",
    name: columns.spent,
    width: "90px",
    isRightAligned: true,
    from: "wide",
    show: ({ spent }) => spent ?? none,
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
