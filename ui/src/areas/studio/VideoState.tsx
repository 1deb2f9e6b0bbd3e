import { useQuery } from "@tanstack/react-query";
import { Check } from "lucide-react";
import { useState } from "react";
import type { Job } from "@/api/types";
import { hasEnded } from "@/jobs/job";
import { describeProgress, isStartingAgain, leftText } from "@/jobs/progress";
import { Progress } from "@/kit";
import { useLiveEvent } from "@/live";
import { studio } from "@/texts/studio";
import { FailedState } from "./FailedState";
import { currentStep, isMissingOutput, isWaiting, processingSeconds, queuePosition, useEffectOf } from "./queries";
import studioStyles from "./studio.module.css";
import styles from "./VideoPage.module.css";

const texts = studio.video;

export function VideoState({ job }: { job: Job }) {
  if (job.status === "failed" || job.status === "canceled") return <FailedState job={job} />;
  if (isMissingOutput(job)) return null;
  return (
    <div className={styles.state}>
      <Steps job={job} />
      {isWaiting(job) ? (
        <QueuePlace job={job} />
      ) : job.status === "completed" ? (
        <DoneState job={job} />
      ) : (
        <RunningState job={job} />
      )}
      {job.cancel_requested_at && <p role="status">{texts.canceling}</p>}
      {!hasEnded(job) && <p className={studioStyles.quiet}>{texts.close}</p>}
    </div>
  );
}

function Steps({ job }: { job: Job }) {
  const { status } = job;
  const at = currentStep(job);
  return (
    <ol className={styles.steps} aria-label={texts.stepsName}>
      {texts.steps.map((name, place) => (
        <li
          key={name}
          data-done={place < at || status === "completed" || undefined}
          aria-current={place === at ? "step" : undefined}
        >
          <span className={styles.dot}>{(place < at || status === "completed") && <Check aria-hidden />}</span>
          {name}
        </li>
      ))}
    </ol>
  );
}

function QueuePlace({ job }: { job: Job }) {
  const { data: waiting } = useQuery(queuePosition(job));
  const effect = useEffectOf(job);
  const seconds = effect?.last_processing_time_seconds;
  const position = waiting?.position;
  const starts = waiting?.expected_start_seconds;
  return (
    <div className={styles.now} role="status">
      <p className={styles.big}>
        {job.status === "paused"
          ? texts.paused
          : isStartingAgain(job)
            ? texts.startingAgain
            : position === 1
              ? texts.next
              : position
                ? texts.place(position)
                : texts.placeUnknown}
      </p>
      <p>
        {typeof starts === "number" ? `${texts.startsIn(starts)}.` : texts.why(waiting?.reason)}
        {typeof seconds === "number" && ` ${texts.longer(seconds)}`}
      </p>
      <Progress value={null} name={texts.waiting} />
    </div>
  );
}

function RunningState({ job }: { job: Job }) {
  const [left, setLeft] = useState<number | null>(null);
  useLiveEvent("progress", ({ jobs }) => {
    const found = jobs.find((each) => each.id === job.id);
    if (found) setLeft(found.expected_seconds ?? null);
  });
  const { value: part, isEstimated } = describeProgress(job.progress);
  return (
    <div className={styles.now} role="status">
      <p className={styles.big}>
        {isStartingAgain(job)
          ? texts.startingAgain
          : part === null
            ? texts.starting
            : isEstimated
              ? texts.estimated(part)
              : texts.percent(part)}
      </p>
      <Progress value={part} name={texts.running} />
      {left !== null && <p>{leftText(left, part)}</p>}
    </div>
  );
}

function DoneState({ job }: { job: Job }) {
  const seconds = processingSeconds(job);
  return (
    <div className={styles.now} role="status">
      <p className={styles.big}>{texts.done}</p>
      <p>
        {[seconds === null ? null : texts.doneIn(seconds), texts.used(job.charged_tokens ?? job.reserved_tokens)]
          .filter(Boolean)
          .join(" · ")}
      </p>
    </div>
  );
}
