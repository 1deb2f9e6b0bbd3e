import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { Ban, Download, RotateCcw, Trash2, Upload } from "lucide-react";
import { useState } from "react";
import { here, post, remove } from "@/api/client";
import { keys } from "@/api/queries";
import type { Job } from "@/api/types";
import { hasEnded } from "@/jobs/job";
import { useConfirm } from "@/jobs/use-confirm";
import { Button, buttonClass, toastProblem } from "@/kit";
import { size } from "@/texts/common";
import { studio } from "@/texts/studio";
import { balance, isMissingOutput, useEffectOf } from "./queries";
import studioStyles from "./studio.module.css";
import styles from "./VideoPage.module.css";

const texts = studio.video;

export function VideoActions({ job }: { job: Job }) {
  const navigate = useNavigate();
  const client = useQueryClient();
  const effect = useEffectOf(job);
  const [busy, setBusy] = useState<string | null>(null);
  const [output] = job.outputs;
  const run = async (what: string, work: () => Promise<{ data: { id: string } }>) => {
    setBusy(what);
    try {
      const { data } = await work();
      void client.invalidateQueries({ queryKey: keys.wallet });
      if (data.id === job.id) void client.invalidateQueries({ queryKey: keys.job(job.id) });
      else await navigate({ to: "/studio/videos/$id", params: { id: data.id } });
    } catch (thrown) {
      toastProblem(thrown);
      // the shown state may be outdated
      void client.invalidateQueries({ queryKey: keys.job(job.id) });
      void client.invalidateQueries({ queryKey: keys.wallet });
    } finally {
      setBusy(null);
    }
  };
  const path = { job_id: job.id };
  // a job with a seed needs a new one to differ
  const { again_tokens: price = 0 } = job;
  const another = { new_seeds: job.seed !== null, expected_tokens: price };
  const same = { new_seeds: false, expected_tokens: price };
  const again = () => run("again", () => post("/api/ai-jobs/{job_id}/again", { path, body: another }));
  const retry = () => run("again", () => post("/api/ai-jobs/{job_id}/retry", { path, body: same }));
  const { confirm, dialog } = useConfirm();
  const discard = async () => {
    const { deleteTitle: title, deleteText: text, delete: yes, keep: no } = texts;
    if (!(await confirm({ title, text, yes, no }))) return;
    setBusy("delete");
    try {
      await remove("/api/ai-jobs/{job_id}", { path });
      void client.invalidateQueries({ queryKey: keys.jobs });
      await navigate({ to: "/studio/videos" });
    } catch (thrown) {
      toastProblem(thrown);
    } finally {
      setBusy(null);
    }
  };
  const cancel = () => run("cancel", () => post("/api/ai-jobs/{job_id}/cancel", { path }));
  const hasFailed = job.status === "failed" || job.status === "canceled";
  const canRunAgain = job.status === "completed" && !isMissingOutput(job);
  const canRetry = hasFailed && !job.retried_as;
  const { data: wallet } = useQuery(balance);
  const isTooExpensive = wallet !== undefined && wallet.balance < price;
  return (
    <div className={styles.buttons}>
      {output && (
        <a
          className={buttonClass({ look: "primary", size: "large", isWide: true })}
          href={here(output.url)}
          download={output.filename}
        >
          <Download aria-hidden />
          {texts.download}
          {typeof output.size === "number" && <span className={styles.light}>{size(output.size)}</span>}
        </a>
      )}
      {job.retried_as && (
        <Link to="/studio/videos/$id" params={{ id: job.retried_as }} className={buttonClass({ look: "primary" })}>
          {texts.openNewer}
        </Link>
      )}
      {canRetry && (
        <Button
          icon={RotateCcw}
          look="primary"
          isBusy={busy === "again"}
          disabled={isTooExpensive}
          onClick={() => void retry()}
        >
          {texts.retryCost(price)}
        </Button>
      )}
      {canRunAgain && (
        <Button icon={RotateCcw} isBusy={busy === "again"} disabled={isTooExpensive} onClick={() => void again()}>
          {texts.againCost(price)}
        </Button>
      )}
      {(canRetry || canRunAgain) && isTooExpensive && (
        <p className={studioStyles.quiet} role="status">
          {studio.effect.tooFew(price, wallet.balance)}.
        </p>
      )}
      {hasEnded(job) && effect && (
        <Link
          to="/studio/effects/$slug"
          params={{ slug: effect.slug }}
          className={buttonClass(isMissingOutput(job) ? { look: "primary" } : {})}
        >
          <Upload aria-hidden />
          {texts.another}
        </Link>
      )}
      {hasEnded(job) && (
        <Button icon={Trash2} isBusy={busy === "delete"} onClick={() => void discard()}>
          {texts.delete}
        </Button>
      )}
      {dialog}
      {!hasEnded(job) && (
        <Button
          icon={Ban}
          isBusy={busy === "cancel"}
          disabled={Boolean(job.cancel_requested_at)}
          onClick={() => void cancel()}
        >
          {texts.cancel}
        </Button>
      )}
    </div>
  );
}
