import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { PencilRuler } from "lucide-react";
import type { ReactNode } from "react";
import { batch as batchQuery } from "@/api/queries";
import type { AboutJob, Job } from "@/api/types";
import { Button, Heading } from "@/kit";
import { Facts } from "@/kit/Facts";
import { useSession } from "@/session/session";
import { job as texts } from "@/texts/job";
import { queue } from "@/texts/queue";
import { ComfyuiLinks } from "./ComfyuiLinks";
import { formatBetween, formatTime } from "./dates";
import { openEditor } from "./open-editor";
import styles from "./section.module.css";

export function JobFacts({ job, about }: { job: Job; about: AboutJob | null | undefined }) {
  const output = job.outputs[0];
  const { me, desk } = useSession();
  const { data: batch } = useQuery({ ...batchQuery(job.batch_id ?? ""), enabled: job.batch_id !== null });
  // users of a server may not see the graphs of effects
  const hasGraph = desk ? about?.workflow_slug !== desk.script_workflow : job.effect_id === null;
  const facts: (readonly [string, ReactNode])[] = [
    [texts.workflow, job.workflow_name || about?.workflow_name],
    [
      texts.batch,
      job.batch_id && (
        <Link key="batch" to="/queue" search={{ batch: job.batch_id }}>
          {batch
            ? queue.itemOf(batch.label ?? queue.batch.title, job.item_no + 1, batch.total)
            : texts.number(job.item_no)}
        </Link>
      ),
    ],
    // the input values already include the prompt and the seed
    [texts.prompt, about ? null : job.prompt],
    [texts.seedName, about || job.seed === null ? null : String(job.seed)],
    [texts.outputs, (job.output_count ?? 0) > 1 ? String(job.output_count) : null],
    [texts.sizeName, output?.width && output.height ? texts.pixels(output.width, output.height) : null],
    [texts.created, formatTime(job.created_at)],
    [texts.waited, formatBetween(job.created_at, job.started_at)],
    [texts.started, formatTime(job.started_at)],
    [texts.ended, formatTime(job.completed_at)],
    [texts.took, formatBetween(job.started_at, job.completed_at)],
    [texts.attempts, job.attempts ? texts.attemptsOf(job.attempts, job.max_attempts) : null],
    [
      texts.retryOf,
      job.retry_of && (
        <Link key="retry" to="/jobs/$id" params={{ id: job.retry_of }}>
          {job.retry_of.slice(-8)}
        </Link>
      ),
    ],
    [
      texts.retriedAs,
      job.retried_as && (
        <Link key="retried" to="/jobs/$id" params={{ id: job.retried_as }}>
          {job.retried_as.slice(-8)}
        </Link>
      ),
    ],
    [
      texts.reusedFrom,
      job.reused_from && (
        <Link key="reused" to="/jobs/$id" params={{ id: job.reused_from }}>
          {job.reused_from.slice(-8)}
        </Link>
      ),
    ],
    [texts.comfyui, about && hasGraph && <ComfyuiLinks key="comfyui" jobId={job.id} about={about} />],
    [
      texts.editor,
      me.has_editor && hasGraph && (
        <Button key="editor" size="small" icon={PencilRuler} onClick={() => void openEditor({ job_id: job.id })}>
          {texts.openInEditor}
        </Button>
      ),
    ],
    [texts.id, <code key="id">{job.id}</code>],
  ];
  return (
    <section className={styles.section}>
      <Heading>{texts.facts}</Heading>
      <Facts facts={facts} />
    </section>
  );
}
