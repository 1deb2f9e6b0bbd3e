import { useInfiniteQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Button, Heading } from "@/kit";
import { duration } from "@/texts/common";
import { console as shared } from "@/texts/console";
import { dispatches as words } from "@/texts/console-dispatches";
import { type Attempt, historyOf } from "../queries/dispatches";
import { LoadingOrError, TimeOfDay } from "../shared/panels";
import { Entries } from "../worker/Audit";
import styles from "./dispatches.module.css";
import { runCost } from "./rules";

const texts = words.dispatch;

/** Attempts and audit entries of a dispatch. */
export function History({ id }: { id: string }) {
  const { data, error, hasNextPage, isFetchingNextPage, fetchNextPage } = useInfiniteQuery(historyOf(id));
  const attempts = data?.pages[0]?.attempts ?? [];
  const entries = data?.pages.flatMap((each) => each.entries.items) ?? [];
  return (
    <>
      <section className={styles.history} aria-label={texts.attempts}>
        <Heading>{texts.attempts}</Heading>
        {!data && <LoadingOrError error={error} height={80} />}
        {data && attempts.length === 0 && <p className={styles.quiet}>{texts.historyEmpty}</p>}
        <ol className={styles.attempts} reversed>
          {attempts.map((each) => (
            <AttemptRow key={each.epoch} attempt={each} />
          ))}
        </ol>
      </section>
      {entries.length > 0 && (
        <section className={styles.history} aria-label={texts.history}>
          <Heading>{texts.history}</Heading>
          <Entries entries={entries} isOfOne />
          {hasNextPage && (
            <Button size="small" isBusy={isFetchingNextPage} onClick={() => void fetchNextPage()}>
              {shared.showMore}
            </Button>
          )}
        </section>
      )}
    </>
  );
}

function AttemptRow({ attempt: { worker_id, leased_at, ended_at, outcome, reason, cost } }: { attempt: Attempt }) {
  const word = outcome ?? (ended_at ? null : "running");
  const parts = [
    word && (texts.outcomes[word] ?? word),
    ended_at && texts.after(duration((Date.parse(ended_at) - Date.parse(leased_at)) / 1000)),
    cost !== null && texts.attemptCost(runCost(cost, outcome)),
  ];
  return (
    <li>
      <TimeOfDay at={leased_at} />
      <span>
        <Link to="/console/workers/$id" params={{ id: worker_id }} className={styles.link}>
          {worker_id}
        </Link>
        : {parts.filter(Boolean).join(", ")}
        {reason && <span className={styles.quiet}> {reason}</span>}
      </span>
    </li>
  );
}
