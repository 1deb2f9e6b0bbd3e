import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { FileQuestion, Images } from "lucide-react";
import { batchItems, batch as batchQuery, job as jobQuery } from "@/api/queries";
import type { Batch, QueueItem } from "@/api/types";
import { ACTION_ICONS, actionName } from "@/jobs/action-menu";
import { type ActionTarget, actionsFor, activeOf, type Counts } from "@/jobs/actions";
import type { JobActions } from "@/jobs/use-job-actions";
import { Button, buttonClass, EmptyState, ErrorCard, Heading, Progress, Skeleton } from "@/kit";
import { common, duration } from "@/texts/common";
import { job as jobTexts } from "@/texts/job";
import { queue as texts } from "@/texts/queue";
import { BatchItems } from "./BatchItems";
import styles from "./BatchPanel.module.css";
import { doneOf, progressParts } from "./rules";

interface BatchPanelProps {
  id: string;
  /** The open item. */
  job: string | undefined;
  /** The counts of the list, in which fetched jobs still wait. */
  counts: Counts | undefined;
  actions: JobActions;
  onItem: (item: QueueItem) => void;
}

/** A batch in the side panel: its progress, actions and items. */
export function BatchPanel({ id, job, counts: listed, actions, onItem }: BatchPanelProps) {
  const { data: batch, error } = useQuery(batchQuery(id));
  const hasSeed = useHasSeed(id);
  if (error) return <EmptyState icon={FileQuestion} title={jobTexts.gone} text={jobTexts.goneAdvice} />;
  if (!batch) return <Skeleton height={160} />;
  const counts = listed ?? batch.counts;
  const target: ActionTarget = { id, isBatch: true, status: "", counts, hasSeed };
  return (
    <section className={styles.batch}>
      {batch.held && (
        <ErrorCard
          tone="warn"
          title={batch.held}
          actions={
            <Button look="primary" onClick={() => void actions.run("resume", target)}>
              {texts.resumeAll}
            </Button>
          }
        />
      )}
      <Progress parts={progressParts(counts, batch.total)} name={texts.batch.progress} />
      <p className={styles.counts}>{countsText(batch, counts)}</p>
      <div className={styles.actions}>
        {actionsFor(target).map((each) => (
          <Button
            key={each}
            size="small"
            icon={ACTION_ICONS[each]}
            look={each === "delete" || each === "cancel" ? "quiet" : "plain"}
            onClick={() => void actions.run(each, target)}
          >
            {(job && texts.verbs.ofBatch[each]) || actionName(each, target)}
          </Button>
        ))}
        {(batch.counts.completed ?? 0) > 0 && (
          <Link to="/gallery" search={{ batch: id }} className={buttonClass({ size: "small" })}>
            <Images aria-hidden />
            {texts.batch.toGallery}
          </Link>
        )}
      </div>
      <Heading>{texts.batch.items}</Heading>
      <BatchItems key={id} batchId={id} openJob={job} onOpen={onItem} />
    </section>
  );
}

/** All items run the same workflow, so the first one decides. */
function useHasSeed(batchId: string): boolean {
  const { data } = useInfiniteQuery(batchItems(batchId));
  const first = data?.pages[0]?.items[0]?.id;
  const { data: job } = useQuery({ ...jobQuery(first ?? ""), enabled: first !== undefined });
  return (job?.seed ?? null) !== null;
}

function countsText({ total, expected_seconds: left }: Batch, counts: Counts): string {
  const byStatus = Object.entries(counts)
    .filter(([, count]) => count)
    .map(([status, count]) => `${count} ${(common.status[status] ?? status).toLowerCase()}`);
  const parts = [texts.doneOf(doneOf(counts), total), ...byStatus];
  if (left !== null && activeOf(counts)) parts.push(texts.left(duration(left)));
  return parts.join(" · ");
}
