import { Link } from "@tanstack/react-router";
import { Progress } from "@/kit";
import { console as shared } from "@/texts/console";
import { workers as many, worker as texts } from "@/texts/console-workers";
import type { WorkerDetails, WorkerJob } from "../queries/workers";
import { Panel } from "../shared/panels";
import { describeProgress, isPrefetched, percentOf, progressPart, runningFirst } from "../workers/rules";
import styles from "./worker.module.css";

export function CurrentJobs({ worker }: { worker: WorkerDetails }) {
  return (
    <Panel
      title={texts.now}
      aside={<span className={styles.quiet}>{texts.slots(worker.leases, worker.max_concurrency)}</span>}
    >
      {worker.jobs.length === 0 && <p className={styles.quiet}>{texts.nothing}</p>}
      {runningFirst(worker.jobs).map((job) => (
        <CurrentJob key={job.dispatch_id} job={job} />
      ))}
    </Panel>
  );
}

function CurrentJob({ job }: { job: WorkerJob }) {
  const part = progressPart(job);
  return (
    <div className={styles.job}>
      <div className={styles.jobLine}>
        <Link to="/console/dispatches" search={{ open: String(job.dispatch_id) }}>
          {job.workflow_slug}
        </Link>
        <span className={styles.figures}>{percentOf(job) ?? (isPrefetched(job) ? texts.next : many.starting)}</span>
      </div>
      {!isPrefetched(job) && <Progress value={part} name={many.progress(job.workflow_slug)} />}
      <span className={styles.quiet}>
        {[describeProgress(job), texts.job(job.dispatch_id), texts.since(shared.at(job.leased_at))]
          .filter(Boolean)
          .join(" · ")}
      </span>
    </div>
  );
}
