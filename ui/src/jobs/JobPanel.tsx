// A job in the side panel of the queue. Its page shows more.

import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { FileQuestion, Maximize2 } from "lucide-react";
import { useState } from "react";
import { aboutJob, job as jobQuery } from "@/api/queries";
import { buttonClass, EmptyState, Skeleton, StatusBadge } from "@/kit";
import { job as texts } from "@/texts/job";
import { Attempts } from "./Attempts";
import { InputValues } from "./InputValues";
import { JobActions } from "./JobActions";
import { JobError } from "./JobError";
import { JobFacts } from "./JobFacts";
import { JobHistory } from "./JobHistory";
import { JobLog } from "./JobLog";
import styles from "./JobPanel.module.css";
import { JobProgress } from "./JobProgress";
import { OutputFiles } from "./OutputFiles";
import type { JobActions as Actions } from "./use-job-actions";
import { Viewer } from "./Viewer";

interface JobPanelProps {
  id: string;
  actions: Actions;
}

export function JobPanel(props: JobPanelProps) {
  // the key resets the selected output when another job opens
  return <Panel key={props.id} {...props} />;
}

function Panel({ id, actions }: JobPanelProps) {
  const { data: job, error } = useQuery(jobQuery(id));
  const { data: about } = useQuery({ ...aboutJob(id), enabled: job !== undefined });
  const [at, setAt] = useState(0);
  if (error) return <EmptyState icon={FileQuestion} title={texts.gone} text={texts.goneAdvice} />;
  if (!job) return <Skeleton height={280} />;
  return (
    <div className={styles.panel}>
      <Viewer job={job} at={at} onAt={setAt} />
      <div className={styles.line}>
        <StatusBadge status={job.status} />
        <Link to="/jobs/$id" params={{ id }} className={buttonClass({ look: "quiet", size: "small" })}>
          <Maximize2 aria-hidden />
          {texts.openPage}
        </Link>
      </div>
      <JobProgress job={job} />
      <JobError job={job} />
      <JobActions job={job} at={at} actions={actions} />
      {about && <InputValues about={about} />}
      <JobFacts job={job} about={about} />
      {about && <OutputFiles about={about} />}
      <JobHistory job={job} />
      {about && about.attempts.length > 1 && <Attempts about={about} />}
      <JobLog job={job} />
    </div>
  );
}
