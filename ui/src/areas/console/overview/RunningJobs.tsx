import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Progress } from "@/kit";
import { overview as texts } from "@/texts/console-overview";
import { workers as workerTexts } from "@/texts/console-workers";
import type { Overview } from "../queries/overview";
import { someWorkers } from "../queries/workers";
import { Panel } from "../shared/panels";
import { describeProgress, percentOf, progressPart, workerName } from "../workers/rules";
import styles from "./overview.module.css";

const MAX_RUNNING = 8;

/** The first busy workers. The response also has the number of workers in each state. */
export const busyWorkers = someWorkers("busy", MAX_RUNNING);

export function RunningJobs({ now }: { now: Overview["now"] | undefined }) {
  const { data: workers } = useQuery(busyWorkers);
  const running = (workers?.items ?? [])
    .flatMap((worker) => worker.jobs.map((job) => ({ worker, job, part: progressPart(job) })))
    .filter(({ part, job }) => part !== null || !job.is_prefetch);
  return (
    <Panel
      title={texts.running}
      aside={
        <Link to="/console/workers" search={{ status: "busy" }} className={styles.aside}>
          {texts.runningAll(Math.max(running.length, now?.running ?? 0))}
        </Link>
      }
    >
      {running.length === 0 && <p className={styles.quiet}>{texts.nothingRuns}</p>}
      <ul className={`${styles.list} ${styles.running}`}>
        {running.slice(0, MAX_RUNNING).map(({ worker, job, part }) => (
          <li key={job.dispatch_id}>
            <Link to="/console/workers/$id" params={{ id: worker.worker_id }}>
              {workerName(worker)}
            </Link>
            <span className={styles.work}>
              <span>{[job.workflow_slug, describeProgress(job)].filter(Boolean).join(" · ")}</span>
              <Progress value={part} name={workerTexts.progress(job.workflow_slug)} />
            </span>
            <span className={styles.percent}>{percentOf(job) ?? texts.none}</span>
          </li>
        ))}
      </ul>
    </Panel>
  );
}
