import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useParams, useRouter } from "@tanstack/react-router";
import { ArrowLeft, FileQuestion } from "lucide-react";
import { useEffect, useState } from "react";
import { aboutJob, job as jobQuery } from "@/api/queries";
import type { Job } from "@/api/types";
import { Attempts } from "@/jobs/Attempts";
import { ACTION_ICONS, actionName } from "@/jobs/action-menu";
import { actionsFor, type JobAction, targetOfJob } from "@/jobs/actions";
import { InputValues } from "@/jobs/InputValues";
import { JobActions } from "@/jobs/JobActions";
import { JobError } from "@/jobs/JobError";
import { JobFacts } from "@/jobs/JobFacts";
import { JobHistory } from "@/jobs/JobHistory";
import { JobLog } from "@/jobs/JobLog";
import { JobProgress } from "@/jobs/JobProgress";
import { hasEnded, jobTitle } from "@/jobs/job";
import { OutputFiles } from "@/jobs/OutputFiles";
import { RerunCommand } from "@/jobs/RerunCommand";
import { shellCommand } from "@/jobs/rerun";
import { useJobActions } from "@/jobs/use-job-actions";
import { Viewer } from "@/jobs/Viewer";
import { buttonClass, EmptyState, Skeleton, StatusBadge } from "@/kit";
import { copyText } from "@/kit/clipboard";
import { Header } from "@/kit/Header";
import { useCommands } from "@/lib/commands";
import { useKeys } from "@/lib/keyboard";
import { savedFilters } from "@/lib/saved-filters";
import { useSession } from "@/session/session";
import { common } from "@/texts/common";
import { job as texts } from "@/texts/job";
import { queue } from "@/texts/queue";
import styles from "./job.module.css";
import { useBatchNeighbors } from "./use-batch-neighbors";

export default function JobPage() {
  const { id } = useParams({ from: "/jobs/$id" });
  const { data: job, error } = useQuery(jobQuery(id));
  return (
    <>
      <Header
        title={job ? jobTitle(job) : texts.title}
        actions={
          <Link
            to="/queue"
            search={{ ...savedFilters("/queue"), ...(job?.batch_id && { batch: job.batch_id }), job: id }}
            className={buttonClass({})}
          >
            <ArrowLeft aria-hidden />
            {texts.back}
          </Link>
        }
      >
        {job && <StatusBadge status={job.status} />}
      </Header>
      {error && <EmptyState icon={FileQuestion} title={texts.gone} text={texts.goneAdvice} />}
      {!job && !error && (
        <div className={styles.page} role="status" aria-label={texts.loading}>
          <Skeleton height={420} />
        </div>
      )}
      {job && <Page key={job.id} job={job} />}
    </>
  );
}

function Page({ job }: { job: Job }) {
  const navigate = useNavigate();
  const client = useQueryClient();
  const { data: about } = useQuery(aboutJob(job.id));
  const [at, setAt] = useState(0);
  const actions = useJobActions({
    onCreated: ({ id }) => void navigate({ to: "/jobs/$id", params: { id } }),
    onDeleted: () => void navigate({ to: "/queue", search: savedFilters("/queue") }),
  });
  const target = targetOfJob(job);
  const available = actionsFor(target);
  const run = (action: JobAction) => void actions.run(action, target);

  const ended = hasEnded(job);
  // the details change when the job ends
  useEffect(() => {
    if (ended) void client.invalidateQueries({ queryKey: ["job", job.id, "about"] });
  }, [client, ended, job.id]);

  useJobKeys(job, available, run);
  useCommands([
    ...available.map((each) => ({
      id: `job-${each}`,
      name: actionName(each, target),
      group: common.palette.page,
      icon: ACTION_ICONS[each],
      run: () => run(each),
    })),
    {
      id: "job-command",
      name: texts.copyCommand,
      group: common.palette.page,
      run: () => void copyText(shellCommand(job, about ?? null)),
    },
  ]);

  return (
    <div className={styles.page}>
      <div className={styles.media}>
        <Viewer job={job} at={at} onAt={setAt} isLarge />
        <JobProgress job={job} />
        <JobError job={job} />
        <JobActions job={job} at={at} actions={actions} />
        <JobLog job={job} />
      </div>
      <div className={styles.side}>
        {about && <InputValues about={about} />}
        <JobFacts job={job} about={about} />
        {about && <OutputFiles about={about} />}
        {about && <Attempts about={about} />}
        <JobHistory job={job} />
        {about && <RerunCommand job={job} about={about} />}
      </div>
      {actions.dialog}
    </div>
  );
}

function useJobKeys(job: Job, available: readonly JobAction[], run: (action: JobAction) => void): void {
  const navigate = useNavigate();
  const router = useRouter();
  const neighbor = useBatchNeighbors(job);
  const { desk } = useSession();
  const slug = job.workflow_slug;
  const group = texts.title;
  const open = (id: string | undefined) => id && void navigate({ to: "/jobs/$id", params: { id }, replace: true });
  const runFirst = (...wanted: JobAction[]) => {
    const action = available.find((each) => wanted.includes(each));
    if (action) run(action);
  };
  useKeys([
    { keys: "j", name: common.keys.next, group, run: () => open(neighbor(1)) },
    { keys: "k", name: common.keys.previous, group, run: () => open(neighbor(-1)) },
    { keys: "r", name: queue.keys.again, group, run: () => runFirst("retry", "again") },
    { keys: "p", name: queue.keys.pause, group, run: () => runFirst("pause", "pauseNow", "resume") },
    // a server does not return the values of a job
    ...(desk && slug
      ? [
          {
            keys: "e",
            name: texts.changeAndRun,
            group,
            run: () => void navigate({ to: "/create", search: { workflow: slug, from: job.id } }),
          },
        ]
      : []),
    {
      keys: "Escape",
      name: texts.back,
      group,
      // without a page to go back to, open the queue
      run: () =>
        router.history.canGoBack()
          ? router.history.back()
          : void navigate({ to: "/queue", search: job.batch_id ? { batch: job.batch_id, job: job.id } : {} }),
    },
  ]);
}
