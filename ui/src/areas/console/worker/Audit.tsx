import { useInfiniteQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { workerMessage } from "@/jobs/errors";
import { Button } from "@/kit";
import { console as shared } from "@/texts/console";
import { worker as words } from "@/texts/console-workers";
import { type AuditEntry, auditOf } from "../queries/workers";
import { LoadingOrError, Panel, TimeOfDay } from "../shared/panels";
import styles from "./worker.module.css";

const { audit: texts } = words;

export function Audit({ id }: { id: string }) {
  const { data, error, hasNextPage, isFetchingNextPage, fetchNextPage } = useInfiniteQuery(auditOf(id));
  const entries = data?.pages.flatMap((each) => each.items);
  return (
    <Panel title={texts.title}>
      {!entries && <LoadingOrError error={error} height={120} />}
      {entries?.length === 0 && <p className={styles.quiet}>{texts.empty}</p>}
      <Entries entries={entries ?? []} />
      {hasNextPage && (
        <Button size="small" isBusy={isFetchingNextPage} onClick={() => void fetchNextPage()}>
          {shared.showMore}
        </Button>
      )}
    </Panel>
  );
}

/** Audit entries, newest first. */
export function Entries({ entries, isOfOne }: { entries: readonly AuditEntry[]; isOfOne?: boolean }) {
  return (
    <ul className={styles.audit}>
      {entries.map((each) => (
        <li key={each.id}>
          <TimeOfDay at={each.created_at} />
          <span>
            {texts.events[each.event] ?? each.event}{" "}
            {each.dispatch_id !== null && !isOfOne && (
              <Link to="/console/dispatches" search={{ open: String(each.dispatch_id) }}>
                {texts.dispatch(each.dispatch_id)}
              </Link>
            )}{" "}
            {isOfOne && each.worker_id && (
              <Link to="/console/workers/$id" params={{ id: each.worker_id }}>
                {each.worker_id}
              </Link>
            )}{" "}
            <span className={styles.data}>{dataOf(each.data)}</span>
          </span>
        </li>
      ))}
    </ul>
  );
}

/** Internal, or redundant with the event. */
const HIDDEN: readonly string[] = ["epoch", "status", "lease_token"];

function dataOf(data: AuditEntry["data"]): string {
  return Object.entries(data ?? {})
    .filter(([name, value]) => !HIDDEN.includes(name) && value !== null && value !== "" && typeof value !== "object")
    .map(([name, value]) => entryText(name, value))
    .join(" · ");
}

function entryText(name: string, value: unknown): string {
  if (name === "error") return workerMessage(String(value));
  if (name.endsWith("seconds") && typeof value === "number") return texts.time(name.replaceAll("_", " "), value);
  return `${name.replaceAll("_", " ")}: ${String(value)}`;
}
