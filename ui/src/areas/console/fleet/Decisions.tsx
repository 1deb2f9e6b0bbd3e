import { useInfiniteQuery } from "@tanstack/react-query";
import { Button, Chip } from "@/kit";
import { console as shared } from "@/texts/console";
import { fleet as words } from "@/texts/console-fleets";
import { type Decision, decisions, type Fleet } from "../queries/fleets";
import { LoadingOrError, Panel, TimeOfDay } from "../shared/panels";
import styles from "./fleet.module.css";

const { decisions: texts } = words;

interface Work {
  workflow: string;
  jobs: number;
  seconds: number;
}

const parseNumber = (data: Record<string, unknown>, name: string): number => Number(data[name] ?? 0) || 0;

export function Decisions({ fleet }: { fleet: Fleet }) {
  const found = useInfiniteQuery(decisions(fleet.stage, fleet.slug));
  const items = found.data?.pages.flatMap((each) => each.items);
  return (
    <Panel title={words.tabs.decisions}>
      {!items && <LoadingOrError error={found.error} />}
      {items?.length === 0 && <p className={styles.quiet}>{texts.empty}</p>}
      <ol className={styles.decisions}>
        {items?.map((each) => (
          <DecisionLine key={each.id} decision={each} />
        ))}
      </ol>
      {found.hasNextPage && (
        <Button size="small" isBusy={found.isFetchingNextPage} onClick={() => void found.fetchNextPage()}>
          {shared.showMore}
        </Button>
      )}
    </Panel>
  );
}

function DecisionLine({ decision }: { decision: Decision }) {
  const { outcome, seen } = decision;
  const done = [
    [parseNumber(outcome, "ordered"), texts.ordered],
    [parseNumber(outcome, "launched"), texts.launched],
    [parseNumber(outcome, "refused"), texts.refused],
    [parseNumber(outcome, "ended"), texts.ended],
  ] as const;
  const work = (Array.isArray(seen.work) ? seen.work : []) as Work[];
  const states = Object.entries((seen.machines_by_state ?? {}) as Record<string, number>);
  const limit = typeof seen.limit === "string" ? seen.limit : "";
  const refusals = Array.isArray(outcome.refusals) ? outcome.refusals.map(String) : [];
  return (
    <li>
      <TimeOfDay at={decision.created_at} />
      <div>
        <p className={styles.reason}>{decision.reason}</p>
        <div className={styles.chips}>
          <Chip>{texts.desired(decision.desired)}</Chip>
          {done
            .filter(([count]) => count > 0)
            .map(([count, text]) => (
              <Chip key={text(count)}>{text(count)}</Chip>
            ))}
          {limit && <span className={styles.quiet}>{texts.limit(limit)}</span>}
        </div>
        {refusals.map((each) => (
          <p key={each} className={styles.bad}>
            {each}
          </p>
        ))}
        {(work.length > 0 || states.length > 0) && (
          <details>
            <summary>{texts.seen}</summary>
            <ul>
              {work.map((each) => (
                <li key={each.workflow}>{texts.work(each.workflow, each.jobs, texts.time(each.seconds))}</li>
              ))}
              {states.length > 0 && (
                <li>{texts.states(states.map(([state, count]) => `${count} ${state}`).join(", "))}</li>
              )}
            </ul>
          </details>
        )}
      </div>
    </li>
  );
}
