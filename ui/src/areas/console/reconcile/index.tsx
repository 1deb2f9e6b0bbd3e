import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { CircleCheck, Scale } from "lucide-react";
import { sentence } from "@/api/problem";
import { Button, EmptyState, ErrorCard, Progress } from "@/kit";
import { Header } from "@/kit/Header";
import { console as console_ } from "@/texts/console";
import { reconcile as texts } from "@/texts/console-operation";
import { type Finding, findings, keys, type Run, reconcileNow } from "../operations/queries";
import { QueryResult, RelativeTime, Section, Sheet, sheet } from "../shared/sheet";

export default function ReconcilePage() {
  const client = useQueryClient();
  const found = useQuery(findings);
  const run = useMutation({
    mutationFn: reconcileNow,
    onSettled: () => client.invalidateQueries({ queryKey: keys.findings }),
  });
  const running = found.data?.running ?? null;
  const isAtIt = run.isPending || running !== null;
  return (
    <>
      <Header
        title={console_.pages.reconcile}
        actions={
          <Button look="primary" icon={Scale} isBusy={isAtIt} onClick={() => run.mutate()}>
            {isAtIt ? texts.running : texts.run}
          </Button>
        }
      />
      <Sheet isNarrow>
        <p className={sheet.about}>{texts.about}</p>
        {run.error && <ErrorCard title={sentence(run.error)} />}
        {running && (
          <div role="status" className={sheet.form}>
            <Progress value={null} name={texts.progress} />
            <span className={sheet.muted}>
              {texts.runningSince} <RelativeTime at={running.started_at} />
            </span>
          </div>
        )}
        <QueryResult query={found}>
          {({ last }) =>
            last ? <LastRun run={last} /> : <EmptyState icon={Scale} title={texts.neverRun} text={texts.neverRunText} />
          }
        </QueryResult>
      </Sheet>
    </>
  );
}

function LastRun({ run }: { run: Run }) {
  const when = (
    <span className={sheet.faint}>
      {texts.lastRun} <RelativeTime at={run.ended_at ?? run.started_at} />
    </span>
  );
  const count = run.count ?? run.findings.length;
  return (
    <>
      {run.problem && <ErrorCard title={texts.failed}>{run.problem}</ErrorCard>}
      {run.shards_down.length > 0 && <ErrorCard tone="warn" title={texts.shardsDown(run.shards_down.join(", "))} />}
      {count > 0 ? (
        <Section title={texts.found(count)} aside={when}>
          <ul className={sheet.list}>
            {run.findings.map((each) => (
              <FindingLine key={`${each.kind} ${each.job_id} ${each.dispatch_id} ${each.text}`} finding={each} />
            ))}
          </ul>
          {count > run.findings.length && <p className={sheet.muted}>{texts.first(run.findings.length)}</p>}
          <p className={sheet.muted}>{texts.howto}</p>
        </Section>
      ) : (
        !run.problem && (
          <>
            <EmptyState icon={CircleCheck} title={texts.allWell} text={texts.allWellText(run.jobs)} />
            <p className={sheet.centered}>{when}</p>
          </>
        )
      )}
    </>
  );
}

const FindingLine = ({ finding }: { finding: Finding }) => (
  <li>
    <span>{finding.text}</span>
    <span className={sheet.line}>
      <code className={sheet.faint}>{texts.kind(finding.kind)}</code>
      <span className={sheet.faint}>{texts.shard(finding.shard)}</span>
      {typeof finding.dispatch_id === "number" && (
        <span className={sheet.faint}>{texts.dispatch(finding.dispatch_id)}</span>
      )}
      {finding.job_id && (
        <Link to="/console/dispatches" search={{ q: finding.job_id }} className={sheet.quietLink ?? ""}>
          {texts.job(finding.job_id)}
        </Link>
      )}
      {finding.tenant_id && (
        <Link to="/console/tenants/$id" params={{ id: finding.tenant_id }} className={sheet.quietLink ?? ""}>
          {texts.tenant}
        </Link>
      )}
    </span>
  </li>
);
