// The parts of what is known of a job.

import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Terminal } from "lucide-react";
import { type ReactNode, useEffect, useRef, useState } from "react";
import { get, here } from "@/api/client";
import { aboutJob, batch as batchQuery, jobHistory, lanes as lanesQuery } from "@/api/queries";
import type { AboutJob, InputValue, Job } from "@/api/types";
import { isBlocked } from "@/areas/queue/rules";
import { Button, ErrorCard, Heading, Progress } from "@/kit";
import { Facts } from "@/kit/Inspector";
import { kindOf, Media } from "@/kit/Media";
import { useLiveEvent } from "@/live";
import { duration, size } from "@/texts/common";
import { job as texts } from "@/texts/job";
import { queue } from "@/texts/queue";
import { copy } from "./Actions";
import styles from "./parts.module.css";
import { commandOf, explainError, hasEnded, howFar, quoted, sentenceIn, sortedValues } from "./rules";

const clockTime = new Intl.DateTimeFormat("en", {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hour12: false,
});
const dayAndTime = new Intl.DateTimeFormat("en", {
  day: "numeric",
  month: "short",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hour12: false,
});
const when = (at: string | null) => (at ? dayAndTime.format(new Date(at)) : null);
const between = (from: string | null, to: string | null) =>
  from && to ? duration(Math.max(0, (Date.parse(to) - Date.parse(from)) / 1000)) : null;

/** Whether a worker has it, and has not begun: where lanes are shown, what runs is on one of them. */
export function useIsFetched(job: Job | undefined): boolean {
  const { data: lanes = [] } = useQuery(lanesQuery);
  const runs = lanes.filter((each) => each.job).map((each) => each.job?.id);
  return job?.status === "processing" && runs.length > 0 && !runs.includes(job.id);
}

/** How far it is, or why it waits; nothing of what has ended. */
export function HowFar({ job }: { job: Job }) {
  const [left, setLeft] = useState<number | null>(null);
  useLiveEvent("progress", ({ jobs }) => {
    const found = jobs.find((each) => each.id === job.id);
    if (found) setLeft(found.expected_seconds ?? null);
  });
  const isFetched = useIsFetched(job);
  if (hasEnded(job)) return null;
  if (isFetched) return <ErrorCard tone="info" title={texts.fetched} />;
  if (job.status === "processing") {
    const { part, words } = howFar(job.progress, left);
    return (
      <div className={styles.far} role="status">
        <Progress value={part} name={texts.running} />
        <p>{words}</p>
      </div>
    );
  }
  const { waiting } = job;
  const text = waiting?.text ?? (job.status === "paused" ? texts.paused : texts.adding);
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

/** The cause, what to do, and the whole of it, folded. */
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

export function Values({ about }: { about: AboutJob }) {
  const { shown, rest } = sortedValues(about.inputs);
  if (!shown.length && !rest.length) return null;
  const facts = (some: readonly InputValue[]) =>
    some.map((each) => [each.label, <Value key={each.key} value={each} />] as const);
  return (
    <section className={styles.part}>
      <Heading>{texts.values}</Heading>
      <Facts facts={facts(shown)} />
      {rest.length > 0 && (
        <details className={styles.fold}>
          <summary>{texts.moreDefaults(rest.length)}</summary>
          <Facts facts={facts(rest)} />
        </details>
      )}
    </section>
  );
}

function Value({ value: { type, value, url } }: { value: InputValue }) {
  const text = typeof value === "object" ? JSON.stringify(value) : String(value ?? "");
  if (url) {
    const address = here(url);
    const mime = type === "image" ? "image/*" : type === "video" ? "video/*" : "";
    return (
      <span className={styles.file}>
        {mime && (
          <span className={styles.thumb}>
            <Media file={{ url: address, mime_type: mime }} name="" />
          </span>
        )}
        <a href={address} download={text}>
          {text}
        </a>
      </span>
    );
  }
  if (typeof value === "boolean") return value ? texts.yes : texts.no;
  return <span className={styles.value}>{text}</span>;
}

export function JobFacts({ job, about }: { job: Job; about: AboutJob | null | undefined }) {
  const output = job.outputs[0];
  const { data: batch } = useQuery({ ...batchQuery(job.batch_id ?? ""), enabled: job.batch_id !== null });
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
    // the values have both, where they are known
    [texts.prompt, about ? null : job.prompt],
    [texts.seedName, about || job.seed === null ? null : String(job.seed)],
    [texts.sizeName, output?.width && output.height ? texts.pixels(output.width, output.height) : null],
    [texts.created, when(job.created_at)],
    [texts.waited, between(job.created_at, job.started_at)],
    [texts.started, when(job.started_at)],
    [texts.ended, when(job.completed_at)],
    [texts.took, between(job.started_at, job.completed_at)],
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
    [texts.id, <code key="id">{job.id}</code>],
  ];
  return (
    <section className={styles.part}>
      <Heading>{texts.facts}</Heading>
      <Facts facts={facts} />
    </section>
  );
}

export function Files({ about }: { about: AboutJob }) {
  const { files } = about;
  if (!files.length) return null;
  const folderOf = (path: string, name: string) => path.slice(0, -name.length - 1);
  const folders = [...new Set(files.map((each) => folderOf(each.path, each.name)))];
  return (
    <section className={styles.part}>
      <Heading>{texts.files}</Heading>
      {folders.length === 1 && <p className={styles.hint}>{texts.inFolder(folders[0] ?? "")}</p>}
      <ul className={styles.files}>
        {files.map((each) => (
          <li key={each.path}>
            {each.url ? (
              <a href={here(each.url)} download={each.name}>
                {folders.length > 1 ? each.path : each.name}
              </a>
            ) : (
              <span>{folders.length > 1 ? each.path : each.name}</span>
            )}
            <span className={styles.hint}>{each.size === null ? texts.fileGone : size(each.size)}</span>
            {each.url && kindOf(each.mime_type) === "text" && (
              <Button size="small" onClick={async () => copy(await (await fetch(here(each.url as string))).text())}>
                {texts.copyText}
              </Button>
            )}
          </li>
        ))}
      </ul>
    </section>
  );
}

export function Attempts({ about }: { about: AboutJob }) {
  if (!about.attempts.length) return null;
  return (
    <section className={styles.part}>
      <Heading>{texts.attempts}</Heading>
      <ol className={styles.attempts}>
        {about.attempts.map((each, place) => {
          const { argv, exit_code: code, log } = (each.about ?? {}) as Record<string, unknown>;
          return (
            <li key={each.started_at} data-outcome={each.outcome ?? "running"}>
              {/* their place: one that was paused does not count, and the next has its number */}
              <strong>{texts.attempt(place + 1)}</strong>
              <span className={styles.hint}>
                {[
                  texts.outcome(each.outcome),
                  when(each.started_at),
                  between(each.started_at, each.ended_at),
                  each.seed === null ? null : texts.seed(String(each.seed)),
                  typeof code === "number" ? texts.exitCode(String(code)) : null,
                ]
                  .filter(Boolean)
                  .join(" · ")}
              </span>
              {each.error && <p className={styles.attemptError}>{sentenceIn(each.error)}</p>}
              {Array.isArray(argv) && (
                <details className={styles.fold}>
                  <summary>{texts.command}</summary>
                  <pre className={styles.code}>{argv.map((word) => quoted(String(word))).join(" ")}</pre>
                  {typeof log === "string" && <p className={styles.hint}>{texts.fullLog(log)}</p>}
                </details>
              )}
            </li>
          );
        })}
      </ol>
    </section>
  );
}

/** What happened to it so far. */
export function Happened({ job }: { job: Job }) {
  const { data: found = [] } = useQuery(jobHistory(job.id));
  if (!found.length) return null;
  return (
    <section className={styles.part}>
      <Heading>{texts.happened}</Heading>
      <ol className={styles.events}>
        {found.map((each) => (
          <li key={each.id} data-type={each.type}>
            <time dateTime={each.at}>{each.at && clockTime.format(new Date(each.at))}</time>
            <span>{texts.events[each.type] ?? each.type}</span>
          </li>
        ))}
      </ol>
    </section>
  );
}

const LOG_PAGE = 200;
const MOST_LINES = 5000;
const AGAIN_MS = 1500;

interface LogLine {
  line: string;
  created_at: string;
}

/** What the workers printed; it grows while the job runs. */
export function Log({ job }: { job: Job }) {
  const [lines, setLines] = useState<LogLine[]>([]);
  const pre = useRef<HTMLPreElement>(null);
  const isOver = hasEnded(job);
  useEffect(() => {
    const stop = new AbortController();
    let timer: ReturnType<typeof setTimeout>;
    let cursor: string | null = null;
    let before: LogLine[] = [];
    const read = async () => {
      try {
        for (;;) {
          const page = await get("/api/ai-jobs/{job_id}/logs", {
            path: { job_id: job.id },
            query: { limit: LOG_PAGE, ...(cursor && { cursor }) } as never,
            signal: stop.signal,
          });
          // a page that is not full is read again: it may grow
          setLines([...before, ...page.items].slice(-MOST_LINES));
          if (!page.next_cursor) break;
          before = [...before, ...page.items].slice(-MOST_LINES);
          cursor = page.next_cursor;
        }
      } catch {
        // asked again below
      }
      if (!stop.signal.aborted && !isOver) timer = setTimeout(again, AGAIN_MS);
    };
    // nobody reads it in a tab that is hidden; it goes on when it is shown
    const again = () => {
      if (document.hidden) document.addEventListener("visibilitychange", again, { once: true, signal: stop.signal });
      else void read();
    };
    again();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [job.id, isOver]);
  const count = lines.length;
  useEffect(() => {
    const node = pre.current;
    // who has scrolled up reads
    if (count && node && node.scrollHeight - node.scrollTop - node.clientHeight < 120)
      node.scrollTop = node.scrollHeight;
  }, [count]);
  if (!count) return null;
  return (
    <section className={styles.part}>
      <Heading>{texts.log}</Heading>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls */}
      <pre ref={pre} className={styles.log} tabIndex={0} role="log" aria-label={texts.log}>
        {lines.map((each) => each.line).join("\n")}
      </pre>
    </section>
  );
}

/** The same job for a terminal. */
export function AsCommand({ job, about }: { job: Job; about: AboutJob }) {
  const command = commandOf(job, about);
  return (
    <section className={styles.part}>
      <Heading>{texts.command}</Heading>
      <pre className={styles.code}>{command}</pre>
      <div>
        <Button size="small" icon={Terminal} onClick={() => void copy(command)}>
          {texts.copyCommand}
        </Button>
      </div>
    </section>
  );
}
