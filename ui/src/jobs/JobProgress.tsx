import { useState } from "react";
import type { Job } from "@/api/types";
import { ErrorCard, Progress } from "@/kit";
import { useLiveEvent } from "@/live";
import { duration } from "@/texts/common";
import { job as texts } from "@/texts/job";
import { queue } from "@/texts/queue";
import { isBlocked } from "./actions";
import styles from "./JobProgress.module.css";
import { hasEnded } from "./job";
import { describeProgress, isStartingAgain } from "./progress";

/** The progress of a job, or why it waits. Shows nothing for a finished job. */
export function JobProgress({ job }: { job: Job }) {
  const [secondsLeft, setSecondsLeft] = useState<number | null>(null);
  useLiveEvent("progress", ({ jobs }) => {
    const found = jobs.find((each) => each.id === job.id);
    if (found) setSecondsLeft(found.expected_seconds ?? null);
  });
  if (hasEnded(job)) return null;
  if (job.is_prefetched) return <ErrorCard tone="info" title={texts.fetched} />;
  if (job.status === "processing") {
    const { value, text } = describeProgress(job.progress, secondsLeft);
    return (
      <div className={styles.progress} role="status">
        <Progress value={value} name={texts.running} />
        <p>{text}</p>
      </div>
    );
  }
  const { waiting } = job;
  const why = waiting?.text ?? (job.status === "paused" ? texts.paused : texts.adding);
  const text = job.status === "queued" && isStartingAgain(job) ? texts.startingAgain(why) : why;
  return (
    <ErrorCard tone={job.status === "paused" || isBlocked(waiting?.reason) ? "warn" : "info"} title={text}>
      {isBlocked(waiting?.reason) && texts.blockedAdvice}
      {waiting?.position ? texts.position(waiting.position) : null}
      {typeof waiting?.expected_start_seconds === "number" && waiting.expected_start_seconds >= 1
        ? ` ${queue.startsIn(duration(waiting.expected_start_seconds))}`
        : null}
    </ErrorCard>
  );
}
