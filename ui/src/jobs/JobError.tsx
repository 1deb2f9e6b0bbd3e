import { useQuery } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { aboutJob } from "@/api/queries";
import type { Job } from "@/api/types";
import { ErrorCard } from "@/kit";
import { explainError } from "./errors";

/** The cause of a failure and advice, with collapsed details. */
export function JobError({ job, actions }: { job: Job; actions?: ReactNode }) {
  const { data: about } = useQuery(aboutJob(job.id));
  if (!job.error) return null;
  const explained = explainError(job.error, about?.error_detail);
  return (
    <ErrorCard
      tone={job.status === "failed" ? "bad" : "warn"}
      title={explained.cause}
      details={explained.details}
      {...(actions && { actions })}
    >
      {job.status === "failed" && explained.advice}
    </ErrorCard>
  );
}
