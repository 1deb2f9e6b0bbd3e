// What the queue shows of one job beside its list; its page shows the rest.

import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { FileQuestion, Maximize2 } from "lucide-react";
import { useState } from "react";
import { aboutJob, job as jobQuery } from "@/api/queries";
import { buttonClass, EmptyState, Skeleton, StatusBadge } from "@/kit";
import { job as texts } from "@/texts/job";
import { Actions } from "./Actions";
import type { useDoing } from "./doing";
import styles from "./job.module.css";
import { Attempts, Files, Happened, HowFar, JobError, JobFacts, Log, useIsFetched, Values } from "./parts";
import { Viewer } from "./Viewer";

export function JobPanel(props: { id: string; doing: ReturnType<typeof useDoing> }) {
  // another job is looked at from its first output on
  return <Panel key={props.id} {...props} />;
}

function Panel({ id, doing }: { id: string; doing: ReturnType<typeof useDoing> }) {
  const { data: job, error } = useQuery(jobQuery(id));
  const { data: about } = useQuery({ ...aboutJob(id), enabled: job !== undefined });
  const isFetched = useIsFetched(job);
  const [at, setAt] = useState(0);
  if (error) return <EmptyState icon={FileQuestion} title={texts.gone} text={texts.goneAdvice} />;
  if (!job) return <Skeleton height={280} />;
  return (
    <div className={styles.panel} key={id}>
      <Viewer key={id} job={job} about={about} at={at} onAt={setAt} />
      <div className={styles.line}>
        <StatusBadge status={isFetched ? "queued" : job.status} />
        <Link to="/jobs/$id" params={{ id }} className={buttonClass({ look: "quiet", size: "small" })}>
          <Maximize2 aria-hidden />
          {texts.openPage}
        </Link>
      </div>
      <HowFar job={job} />
      <JobError job={job} />
      <Actions job={job} at={at} doing={doing} />
      {about && <Values about={about} />}
      <JobFacts job={job} about={about} />
      {about && <Files about={about} />}
      <Happened job={job} />
      {about && about.attempts.length > 1 && <Attempts about={about} />}
      <Log job={job} />
    </div>
  );
}
