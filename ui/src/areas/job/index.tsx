import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useParams, useRouter } from "@tanstack/react-router";
import { ArrowLeft, FileQuestion } from "lucide-react";
import { useEffect, useState } from "react";
import { aboutJob, batchItems, job as jobQuery } from "@/api/queries";
import type { Job } from "@/api/types";
import { useCommands } from "@/app/commands";
import { Header } from "@/app/Header";
import { useKeys } from "@/app/keyboard";
import { lastSearch } from "@/app/last";
import { verbsOf } from "@/areas/queue/rules";
import { buttonClass, EmptyState, Skeleton, StatusBadge } from "@/kit";
import { common } from "@/texts/common";
import { job as texts } from "@/texts/job";
import { queue } from "@/texts/queue";
import { Actions, copy, subjectOfJob, VERB_ICONS } from "./Actions";
import { nameOfVerb, useDoing } from "./doing";
import styles from "./job.module.css";
import { AsCommand, Attempts, Files, Happened, HowFar, JobError, JobFacts, Log, Values } from "./parts";
import { commandOf, hasEnded, titleOf } from "./rules";
import { Viewer } from "./Viewer";

export default function JobPage() {
  const { id } = useParams({ from: "/jobs/$id" });
  const { data: job, error } = useQuery(jobQuery(id));
  return (
    <>
      <Header
        title={job ? titleOf(job) : texts.title}
        actions={
          <Link
            to="/queue"
            search={{ ...lastSearch("/queue"), batch: job?.batch_id ?? undefined, job: id } as never}
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
  const router = useRouter();
  const client = useQueryClient();
  const { data: about } = useQuery(aboutJob(job.id));
  const doing = useDoing(
    ({ id }) => void navigate({ to: "/jobs/$id", params: { id } }),
    () => void navigate({ to: "/queue", search: lastSearch("/queue") as never }),
  );
  const ended = hasEnded(job);
  // what is known beside the job comes with its end
  useEffect(() => {
    if (ended) void client.invalidateQueries({ queryKey: ["job", job.id, "about"] });
  }, [client, ended, job.id]);

  const [at, setAt] = useState(0);
  const subject = subjectOfJob(job);
  const verbs = verbsOf(subject);
  const neighbour = useNeighbours(job);
  const again = verbs.find((each) => each === "retry" || each === "again");
  const hold = verbs.find((each) => each === "pause" || each === "pauseNow" || each === "resume");
  const slug = job.workflow_slug;
  const go = (id: string | undefined) => id && void navigate({ to: "/jobs/$id", params: { id }, replace: true });
  useKeys([
    { keys: "j", name: common.keys.next, group: texts.title, run: () => go(neighbour(1)) },
    { keys: "k", name: common.keys.previous, group: texts.title, run: () => go(neighbour(-1)) },
    { keys: "r", name: queue.keys.again, group: texts.title, run: () => again && void doing.doVerb(again, subject) },
    { keys: "p", name: queue.keys.pause, group: texts.title, run: () => hold && void doing.doVerb(hold, subject) },
    {
      keys: "e",
      name: texts.changeAndRun,
      group: texts.title,
      run: () => slug && void navigate({ to: "/create", search: { workflow: slug, from: job.id } }),
    },
    {
      keys: "Escape",
      name: texts.back,
      group: texts.title,
      // to where one came from; who came by a link from elsewhere gets to the queue
      run: () =>
        router.history.canGoBack()
          ? router.history.back()
          : void navigate({ to: "/queue", search: job.batch_id ? { batch: job.batch_id, job: job.id } : {} }),
    },
  ]);
  useCommands([
    ...verbs.map((verb) => ({
      id: `job-${verb}`,
      name: nameOfVerb(verb, subject),
      group: common.palette.page,
      icon: VERB_ICONS[verb],
      run: () => void doing.doVerb(verb, subject),
    })),
    {
      id: "job-command",
      name: texts.copyCommand,
      group: common.palette.page,
      run: () => void copy(commandOf(job, about ?? null)),
    },
  ]);

  return (
    <div className={styles.page}>
      <div className={styles.media}>
        <Viewer job={job} about={about} at={at} onAt={setAt} isLarge />
        <HowFar job={job} />
        <JobError job={job} />
        <Actions job={job} at={at} doing={doing} />
        <Log job={job} />
      </div>
      <div className={styles.side}>
        {about && <Values about={about} />}
        <JobFacts job={job} about={about} />
        {about && <Files about={about} />}
        {about && <Attempts about={about} />}
        <Happened job={job} />
        {about && <AsCommand job={job} about={about} />}
      </div>
      {doing.dialog}
    </div>
  );
}

/** The items before and after it in its batch. */
function useNeighbours(job: Job): (by: 1 | -1) => string | undefined {
  const client = useQueryClient();
  const { batch_id: batchId } = job;
  useEffect(() => {
    if (batchId) void client.prefetchInfiniteQuery(batchItems(batchId));
  }, [client, batchId]);
  return (by) => {
    const found = batchId ? client.getQueryData(batchItems(batchId).queryKey) : undefined;
    const items = found?.pages.flatMap((each) => each.items) ?? [];
    const at = items.findIndex((each) => each.item_no === job.item_no);
    return at < 0 ? undefined : items[at + by]?.id;
  };
}
