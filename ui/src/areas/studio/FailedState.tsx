import type { Job } from "@/api/types";
import { splitSentences } from "@/jobs/errors";
import { ErrorCard } from "@/kit";
import { studio } from "@/texts/studio";
import { isTechnical } from "./queries";
import styles from "./VideoPage.module.css";

const texts = studio.video;

/** Failed or canceled, with the refund. */
export function FailedState({ job }: { job: Job }) {
  const known = job.error ? texts.failure(job.error) : null;
  const isInside = job.error ? known !== null || isTechnical(job.error) : true;
  const [first = texts.failed, ...rest] = job.error && !isInside ? splitSentences(job.error) : [];
  const cause = known?.cause ?? first;
  const advice = known?.advice ?? (isInside ? `${texts.failedInside} ${texts.failedAdvice}` : rest.join(" "));
  const isFailed = job.status === "failed";
  const tokens =
    job.reserved_tokens === 0
      ? texts.noCharge
      : job.refunded_tokens
        ? texts.refunded(job.refunded_tokens)
        : texts.refunding(job.reserved_tokens);
  return (
    <ErrorCard
      tone={isFailed ? "bad" : "info"}
      title={isFailed ? cause : job.canceled_by === "administrator" ? texts.canceledByOthers : texts.canceled}
      details={isFailed && isInside ? job.error : null}
    >
      {isFailed && <p>{advice}</p>}
      <p className={styles.refund}>{tokens}</p>
    </ErrorCard>
  );
}
