import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useParams } from "@tanstack/react-router";
import {
  ArrowLeft,
  Ban,
  Check,
  Download,
  FileQuestion,
  Hourglass,
  RotateCcw,
  Trash2,
  Upload,
  WifiOff,
} from "lucide-react";
import { type ReactNode, useState } from "react";
import { here, post } from "@/api/client";
import { Problem, sentence } from "@/api/problem";
import { job as jobQuery, keys } from "@/api/queries";
import type { Job } from "@/api/types";
import { hasEnded, howFar, sentences, titleOf } from "@/areas/job/rules";
import { Viewer } from "@/areas/job/Viewer";
import { Button, buttonClass, EmptyState, ErrorCard, Heading, Progress, Skeleton, toastProblem } from "@/kit";
import { useLiveEvent, useLiveState } from "@/live";
import { ago, duration, size } from "@/texts/common";
import { studio } from "@/texts/studio";
import { balance, isGone, isTechnical, placeOf, stepOf, tookSeconds, useEffectOf, waits } from "./data";
import { Head } from "./Frame";
import styles from "./studio.module.css";

const texts = studio.video;

export default function VideoPage() {
  const { id } = useParams({ from: "/studio/videos/$id" });
  const { data: job, error } = useQuery(jobQuery(id));
  const isGone = error instanceof Problem && [404, 422].includes(error.status);
  return (
    <>
      <Head title={job ? titleOf(job) : texts.title} />
      {!job && isGone && (
        <EmptyState icon={FileQuestion} title={texts.gone} text={texts.goneText}>
          <Link to="/studio/videos" className={buttonClass({})}>
            {texts.back}
          </Link>
        </EmptyState>
      )}
      {!job && error && !isGone && (
        <div className={styles.content}>
          <ErrorCard title={sentence(error)} />
        </div>
      )}
      {!job && !error && (
        <div className={styles.content} role="status" aria-label={studio.loading}>
          <Skeleton height={420} />
        </div>
      )}
      {job && <Page key={job.id} job={job} />}
    </>
  );
}

function Page({ job }: { job: Job }) {
  return (
    <div className={styles.videoPage} data-status={job.status}>
      <div className={styles.main}>
        <Link to="/studio/videos" className={styles.back}>
          <ArrowLeft aria-hidden />
          {texts.back}
        </Link>
        {isGone(job) ? (
          <div className={styles.goneView}>
            {job.is_expired ? (
              <EmptyState icon={Hourglass} title={texts.expired} text={texts.expiredText} />
            ) : (
              <EmptyState icon={Trash2} title={texts.deleted} text={texts.deletedText} />
            )}
          </div>
        ) : (
          <Viewer job={job} at={0} onAt={() => undefined} isLarge />
        )}
      </div>
      <aside className={styles.side} aria-label={texts.stepsName}>
        <Offline job={job} />
        <State job={job} />
        <Actions job={job} />
        <About job={job} />
      </aside>
    </div>
  );
}

function Offline({ job }: { job: Job }) {
  const live = useLiveState();
  if (hasEnded(job) || (live !== "offline" && live !== "reconnecting")) return null;
  return (
    <div className={styles.offline} role="status">
      <WifiOff aria-hidden />
      <span>
        <strong>{texts.offline}.</strong> {texts.offlineText}
      </span>
    </div>
  );
}

function State({ job }: { job: Job }) {
  if (job.status === "failed" || job.status === "canceled") return <Lost job={job} />;
  if (isGone(job)) return null;
  return (
    <div className={styles.state}>
      <Steps job={job} />
      {waits(job) ? <Place job={job} /> : job.status === "completed" ? <Done job={job} /> : <Running job={job} />}
      {job.cancel_requested_at && <p role="status">{texts.canceling}</p>}
      {!hasEnded(job) && <p className={styles.quiet}>{texts.close}</p>}
    </div>
  );
}

function Steps({ job }: { job: Job }) {
  const { status } = job;
  const at = stepOf(job);
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

function Place({ job }: { job: Job }) {
  const { data: waiting } = useQuery(placeOf(job));
  const effect = useEffectOf(job);
  const seconds = effect?.last_processing_time_seconds;
  const position = waiting?.position;
  const starts = waiting?.expected_start_seconds;
  return (
    <div className={styles.now} role="status">
      <p className={styles.big}>
        {job.status === "paused"
          ? texts.paused
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

function Running({ job }: { job: Job }) {
  const [left, setLeft] = useState<number | null>(null);
  useLiveEvent("progress", ({ jobs }) => {
    const found = jobs.find((each) => each.id === job.id);
    if (found) setLeft(found.expected_seconds ?? null);
  });
  const { part } = howFar(job.progress);
  return (
    <div className={styles.now} role="status">
      <p className={styles.big}>{part === null ? texts.starting : texts.percent(part)}</p>
      <Progress value={part} name={texts.running} />
      {left !== null && <p>{texts.left(left)}</p>}
    </div>
  );
}

function Done({ job }: { job: Job }) {
  const seconds = tookSeconds(job);
  return (
    <div className={styles.now} role="status">
      <p className={styles.big}>{texts.done}</p>
      <p>
        {[seconds === null ? null : texts.doneIn(seconds), texts.used(job.reserved_tokens)].filter(Boolean).join(" · ")}
      </p>
    </div>
  );
}

/** Failed or canceled: why, in a sentence, and what became of the tokens. */
function Lost({ job }: { job: Job }) {
  const known = job.error ? texts.failure(job.error) : null;
  const isInside = job.error ? known !== null || isTechnical(job.error) : true;
  const [first = texts.failed, ...rest] = job.error && !isInside ? sentences(job.error) : [];
  const cause = known?.cause ?? first;
  const advice = known?.advice ?? `${isInside ? texts.failedInside : rest.join(" ")} ${texts.failedAdvice}`;
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

function Actions({ job }: { job: Job }) {
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
      // what it said may be old
      void client.invalidateQueries({ queryKey: keys.job(job.id) });
      void client.invalidateQueries({ queryKey: keys.wallet });
    } finally {
      setBusy(null);
    }
  };
  const path = { job_id: job.id };
  // where chance has a part in it, the same once more would be the same
  const { again_tokens: price = 0 } = job;
  const another = { new_seeds: job.seed !== null, expected_tokens: price };
  const same = { new_seeds: false, expected_tokens: price };
  const again = () => run("again", () => post("/api/ai-jobs/{job_id}/again", { path, body: another }));
  const retry = () => run("again", () => post("/api/ai-jobs/{job_id}/retry", { path, body: same }));
  const cancel = () => run("cancel", () => post("/api/ai-jobs/{job_id}/cancel", { path }));
  const isLost = job.status === "failed" || job.status === "canceled";
  const canAgain = job.status === "completed" && !isGone(job);
  const canRetry = isLost && !job.retried_as;
  const { data: purse } = useQuery(balance);
  const lacks = purse !== undefined && purse.balance < price;
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
        <Button icon={RotateCcw} look="primary" isBusy={busy === "again"} disabled={lacks} onClick={() => void retry()}>
          {texts.retryCost(price)}
        </Button>
      )}
      {canAgain && (
        <Button icon={RotateCcw} isBusy={busy === "again"} disabled={lacks} onClick={() => void again()}>
          {texts.againCost(price)}
        </Button>
      )}
      {(canRetry || canAgain) && lacks && (
        <p className={styles.quiet} role="status">
          {studio.effect.tooFew(price, purse.balance)}.
        </p>
      )}
      {hasEnded(job) && effect && (
        <Link
          to="/studio/effects/$slug"
          params={{ slug: effect.slug }}
          className={buttonClass(isGone(job) ? { look: "primary" } : {})}
        >
          <Upload aria-hidden />
          {texts.another}
        </Link>
      )}
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

function About({ job }: { job: Job }) {
  const effect = useEffectOf(job);
  const facts: [string, ReactNode][] = [];
  if (effect) {
    facts.push([
      texts.effect,
      <Link key="effect" to="/studio/effects/$slug" params={{ slug: effect.slug }}>
        {effect.name}
      </Link>,
    ]);
  } else if (job.workflow_name) facts.push([texts.effect, job.workflow_name]);
  if (job.input?.name) facts.push([texts.file, job.input.name]);
  facts.push([texts.made, ago(job.created_at)]);
  const [output] = job.outputs;
  if (output?.width && output.height) {
    const long = typeof output.seconds === "number" ? ` · ${duration(output.seconds)}` : "";
    facts.push([texts.size, `${output.width} × ${output.height}${long}`]);
  }
  if (!hasEnded(job)) facts.push([texts.tokens, texts.reserved(job.reserved_tokens)]);
  return (
    <section className={styles.part}>
      <Heading>{texts.about}</Heading>
      <dl className={styles.facts}>
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      <Link to="/jobs/$id" params={{ id: job.id }} className={styles.more}>
        {texts.details}
      </Link>
    </section>
  );
}
