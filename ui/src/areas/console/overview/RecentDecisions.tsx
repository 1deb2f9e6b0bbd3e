import { Link } from "@tanstack/react-router";
import { overview as texts } from "@/texts/console-overview";
import { Panel, TimeOfDay } from "../shared/panels";
import styles from "./overview.module.css";
import { useAutoscaledFleets } from "./use-autoscaled-fleets";

const MAX_DECISIONS = 6;

export function RecentDecisions() {
  const { fleets } = useAutoscaledFleets();
  const found = fleets
    .flatMap(({ fleet, scaling: how }) => (how?.decision ? [{ fleet, decision: how.decision }] : []))
    .sort((one, other) => Date.parse(other.decision.created_at) - Date.parse(one.decision.created_at))
    .slice(0, MAX_DECISIONS);
  return (
    <Panel title={texts.decisions}>
      {found.length === 0 && <p className={styles.quiet}>{texts.noDecisions}</p>}
      <ul className={styles.list}>
        {found.map(({ fleet, decision }) => (
          <li key={fleet.id}>
            <TimeOfDay at={decision.created_at} />
            <span>
              <Link
                to="/console/fleets/$stage/$slug"
                params={{ stage: fleet.stage, slug: fleet.slug }}
                search={{ tab: "decisions" }}
              >
                {fleet.name || fleet.slug}
              </Link>
              : {decision.reason}
            </span>
          </li>
        ))}
      </ul>
    </Panel>
  );
}
