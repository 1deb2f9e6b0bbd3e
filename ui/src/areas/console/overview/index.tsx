import { useMutation, useQueries, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { ChartLine, CircleCheck, Plus, TriangleAlert } from "lucide-react";
import { useMemo } from "react";
import { Button, buttonClass, EmptyState, Progress, toast, toastProblem } from "@/kit";
import { Header } from "@/kit/Header";
import { Segmented } from "@/kit/Segmented";
import { Sparkline } from "@/kit/Sparkline";
import { number } from "@/texts/common";
import { console as shared } from "@/texts/console";
import { overview as texts } from "@/texts/console-overview";
import { workers as workerTexts, worker as workerWords } from "@/texts/console-workers";
import {
  deliveryCounts,
  doToWorker,
  fleets as fleetsQuery,
  type Overview,
  overview as overviewQuery,
  scaling,
  someWorkers,
} from "../data";
import { consoleKeys } from "../live";
import { At, Panel, type Tone, Waiting } from "../parts";
import { howOf, nameOf, partOf } from "../workers/rules";
import { Chart } from "./Chart";
import styles from "./overview.module.css";
import {
  errorRate,
  errorRates,
  highest,
  type Notice,
  noticesOf,
  RANGES,
  type Range,
  rangeOf,
  rates,
  thinned,
  type Values,
} from "./rules";

export default function OverviewPage() {
  const search = useSearch({ from: "/console/" });
  const navigate = useNavigate({ from: "/console/" });
  const range = rangeOf(search.range);
  const { data, error, isError } = useQuery(overviewQuery(range));
  return (
    <>
      <Header
        title={shared.pages.overview}
        actions={
          <Link to="/console/workers" search={{ open: "add" } as never} className={buttonClass({ look: "primary" })}>
            <Plus aria-hidden />
            {texts.addWorker}
          </Link>
        }
      >
        <Segmented
          name={texts.range}
          value={range}
          choices={RANGES.map((value) => ({ value, name: texts.ranges[value] }))}
          onChange={(next) =>
            void navigate({ search: (before) => ({ ...before, range: next }) as never, replace: true })
          }
        />
      </Header>
      <div className={styles.page}>
        <Attention now={data?.now} isOverviewFailed={isError} />
        {data ? (
          <>
            {/* until those of another range are there, these are shown, as what they are */}
            <Tiles found={data} range={rangeOf(data.range)} />
            <Charts found={data} range={rangeOf(data.range)} />
          </>
        ) : (
          <Waiting error={error} height={420} />
        )}
        <div className={styles.columns}>
          <Running now={data?.now} />
          <Decisions />
        </div>
      </div>
    </>
  );
}

/** Fleets that this server or another process scales, with how. */
function useScaled() {
  const { data: fleets, isError } = useQuery(fleetsQuery);
  const scaled = (fleets ?? []).filter((each) => each.machines && each.machines.provider !== "static");
  return useQueries({
    queries: scaled.map((each) => scaling(each.stage, each.slug)),
    combine: (found) => ({
      fleets: found.flatMap((each, index) => {
        const fleet = scaled[index];
        return fleet ? [{ fleet, scaling: each.data }] : [];
      }),
      isKnown: fleets !== undefined && found.every((each) => each.data !== undefined),
      isFailed: isError || found.some((each) => each.isError),
    }),
  });
}

const MOST_RUNNING = 8;
/** The first that run something; it tells, too, how many there are of all kinds. */
const busyWorkers = someWorkers("busy", MOST_RUNNING);

function Attention({ now, isOverviewFailed }: { now: Overview["now"] | undefined; isOverviewFailed: boolean }) {
  const workers = useQuery(busyWorkers);
  const counts = workers.data?.counts ?? {};
  const { data: shut } = useQuery({ ...someWorkers("revoked", 1), enabled: !!counts.revoked });
  const { data: away } = useQuery({ ...someWorkers("offline", 1), enabled: !!counts.offline });
  const deliveries = useQuery(deliveryCounts);
  const { fleets, isKnown, isFailed } = useScaled();
  const { dead, most } = deliveries.data ?? { dead: 0, most: 1 };
  const notices = noticesOf({
    now: workers.data && now,
    workers: { counts, shut: shut?.items[0], away: away?.items[0] },
    fleets,
    dead,
    isMoreDead: dead >= most,
  });
  const hasFailed = isOverviewFailed || workers.isError || deliveries.isError || isFailed;
  const isAllKnown = now && workers.data && deliveries.data && isKnown;
  return (
    <section aria-label={texts.attention.title}>
      {(hasFailed || notices.length > 0) && (
        <ul className={styles.notices}>
          {hasFailed && (
            <li className={styles.notice} data-tone="warn">
              <TriangleAlert aria-hidden />
              <div className={styles.noticeText}>
                <strong>{texts.attention.unknown}</strong>
                <span>{texts.attention.unknownAside}</span>
              </div>
            </li>
          )}
          {notices.map((each) => (
            <NoticeLine key={each.key} notice={each} />
          ))}
        </ul>
      )}
      {/* not before all was looked at */}
      {notices.length === 0 && !hasFailed && isAllKnown && (
        <p className={styles.calm}>
          <CircleCheck aria-hidden />
          {texts.attention.nothing}
        </p>
      )}
    </section>
  );
}

function NoticeLine({ notice }: { notice: Notice }) {
  const client = useQueryClient();
  const approve = useMutation({
    mutationFn: (id: string) => doToWorker.approve(id),
    onSuccess: async () => {
      toast({ text: workerWords.did.approve, tone: "good" });
      await client.invalidateQueries({ queryKey: consoleKeys.workers });
    },
    onError: toastProblem,
  });
  const { approve: worker } = notice;
  return (
    <li className={styles.notice} data-tone={notice.tone}>
      <TriangleAlert aria-hidden />
      <div className={styles.noticeText}>
        <strong>{notice.text}</strong>
        <span>{notice.aside}</span>
      </div>
      {worker !== undefined && (
        <Button size="small" isBusy={approve.isPending} onClick={() => approve.mutate(worker)}>
          {texts.attention.approve}
        </Button>
      )}
      <Link
        to={notice.to}
        search={(notice.search ?? {}) as never}
        className={buttonClass({ size: "small" })}
        aria-label={`${texts.attention.open}: ${notice.text}`}
      >
        {texts.attention.open}
      </Link>
    </li>
  );
}

interface TileProps {
  name: string;
  value: string;
  aside: string;
  tone: Tone;
  values: Values;
  maximum?: number;
  to: string;
  search?: Readonly<Record<string, string>>;
}

function Tile({ name, value, aside, tone, values, maximum, to, search }: TileProps) {
  return (
    <Link to={to} search={(search ?? {}) as never} className={styles.tile} data-tone={tone}>
      <span className={styles.tileName}>{name}</span>
      <span className={styles.tileValue}>{value}</span>
      <span className={styles.tileAside}>{aside}</span>
      <span className={styles.spark} aria-hidden>
        <Sparkline values={thinned(values)} name={name} {...(maximum && { maximum })} />
      </span>
    </Link>
  );
}

function Tiles({ found: { now, series, bucket_seconds }, range }: { found: Overview; range: Range }) {
  const rate = errorRate(now.done_hour, now.failed_hour);
  const wait = now.wait_hour_seconds;
  const ended = (sums: Values) => rates(sums, range, bucket_seconds).slice(0, -1);
  return (
    <section className={styles.tiles} aria-label={texts.tiles}>
      <Tile
        name={texts.waiting}
        value={number.format(now.waiting)}
        aside={texts.waitingAside(now.waiting ? now.oldest_wait_seconds : null)}
        tone="info"
        values={series.waiting}
        to="/console/dispatches"
        search={{ status: "queued" }}
      />
      <Tile
        name={texts.wait}
        value={wait === null ? texts.none : texts.seconds(wait)}
        aside={texts.waitAside}
        tone="accent"
        values={series.wait_seconds}
        to="/console/dispatches"
        search={{ status: "queued" }}
      />
      <Tile
        name={texts.done}
        value={number.format(now.done_hour)}
        aside={texts.doneAside(now.running)}
        tone="good"
        values={ended(series.done)}
        to="/console/dispatches"
        search={{ status: "completed" }}
      />
      <Tile
        name={texts.failed}
        value={rate === null ? texts.none : texts.percent(rate)}
        aside={texts.failedAside(now.failed_hour)}
        tone={now.failed_hour ? "bad" : "muted"}
        values={ended(series.failed)}
        to="/console/dispatches"
        search={{ status: "failed" }}
      />
      <Tile
        name={texts.busy}
        value={texts.busyOf(now.busy, now.slots)}
        aside={texts.busyAside(now.workers_online)}
        tone="good"
        values={series.busy}
        maximum={Math.max(highest(series.slots) ?? 0, now.slots, 1)}
        to="/console/workers"
        search={{ status: "busy" }}
      />
      <Tile
        name={texts.tokens}
        value={texts.compact(now.tokens_hour)}
        aside={texts.tokensAside}
        tone="warn"
        values={ended(series.tokens)}
        to="/console/tenants"
      />
    </section>
  );
}

/** Times are told in seconds, minutes and hours: lines stand at whole ones. */
const TIMES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 28_800, 86_400];

function Charts({ found: { now, series, bucket_seconds }, range }: { found: Overview; range: Range }) {
  const at = useMemo(() => series.at.map((each) => Date.parse(each) / 1000), [series.at]);
  const errors = useMemo(() => errorRates(series.done, series.failed), [series.done, series.failed]);
  const { done, failed, tokens } = useMemo(() => {
    const rated = (sums: Values) => rates(sums, range, bucket_seconds);
    return { done: rated(series.done), failed: rated(series.failed), tokens: rated(series.tokens) };
  }, [series.done, series.failed, series.tokens, range, bucket_seconds]);
  const per = texts.per[range] ?? "";
  const whole = (value: number) => texts.compact(value);
  const { chart, line } = texts;
  if (at.length === 0) {
    return <EmptyState icon={ChartLine} title={texts.noSamplesTitle} text={texts.noSamples(now.workers_online > 0)} />;
  }
  const common = { at, range };
  return (
    <section className={styles.charts} aria-label={texts.charts}>
      <Chart
        {...common}
        title={chart.waiting}
        lines={[{ name: line.waiting, values: series.waiting, tone: "info" }]}
        format={whole}
        least={4}
      />
      <Chart
        {...common}
        title={chart.wait}
        lines={[{ name: line.wait, values: series.wait_seconds, tone: "accent" }]}
        format={texts.seconds}
        least={10}
        steps={TIMES}
      />
      <Chart
        {...common}
        title={chart.throughput(per)}
        lines={[
          { name: line.done, values: done, tone: "good" },
          { name: line.failed, values: failed, tone: "bad", isBare: true },
        ]}
        format={whole}
        least={4}
      />
      <Chart
        {...common}
        title={chart.errors}
        lines={[{ name: line.errors, values: errors, tone: "bad" }]}
        format={texts.percent}
        least={0.05}
      />
      <Chart
        {...common}
        title={chart.busy}
        lines={[
          { name: line.busy, values: series.busy, tone: "good" },
          { name: line.slots, values: series.slots, tone: "muted", isBare: true },
        ]}
        format={whole}
        least={4}
      />
      <Chart
        {...common}
        title={chart.tokens(per)}
        lines={[{ name: line.tokens, values: tokens, tone: "warn" }]}
        format={whole}
        least={10}
      />
    </section>
  );
}

function Running({ now }: { now: Overview["now"] | undefined }) {
  const { data: workers } = useQuery(busyWorkers);
  const running = (workers?.items ?? [])
    .flatMap((worker) => worker.jobs.map((job) => ({ worker, job, part: partOf(job) })))
    .filter(({ part, job }) => part !== null || !job.is_prefetch);
  return (
    <Panel
      title={texts.running}
      aside={
        <Link to="/console/workers" search={{ status: "busy" } as never} className={styles.aside}>
          {texts.runningAll(Math.max(running.length, now?.running ?? 0))}
        </Link>
      }
    >
      {running.length === 0 && <p className={styles.quiet}>{texts.nothingRuns}</p>}
      <ul className={`${styles.list} ${styles.running}`}>
        {running.slice(0, MOST_RUNNING).map(({ worker, job, part }) => (
          <li key={job.dispatch_id}>
            <Link to="/console/workers/$id" params={{ id: worker.worker_id }}>
              {nameOf(worker)}
            </Link>
            <span className={styles.work}>
              <span>{[job.workflow_slug, howOf(job)].filter(Boolean).join(" · ")}</span>
              <Progress value={part} name={workerTexts.progress(job.workflow_slug)} />
            </span>
            <span className={styles.percent}>{part === null ? texts.none : workerTexts.percent(part)}</span>
          </li>
        ))}
      </ul>
    </Panel>
  );
}

const MOST_DECISIONS = 6;

function Decisions() {
  const { fleets } = useScaled();
  const found = fleets
    .flatMap(({ fleet, scaling: how }) => (how?.decision ? [{ fleet, decision: how.decision }] : []))
    .sort((one, other) => Date.parse(other.decision.created_at) - Date.parse(one.decision.created_at))
    .slice(0, MOST_DECISIONS);
  return (
    <Panel title={texts.decisions}>
      {found.length === 0 && <p className={styles.quiet}>{texts.noDecisions}</p>}
      <ul className={styles.list}>
        {found.map(({ fleet, decision }) => (
          <li key={fleet.id}>
            <At at={decision.created_at} />
            <span>
              <Link
                to="/console/fleets/$stage/$slug"
                params={{ stage: fleet.stage, slug: fleet.slug }}
                search={{ tab: "decisions" } as never}
              >
                {fleet.name || fleet.slug}
              </Link>
              : {decision.reason}
            </span>
          </li>
        ))}
      </ul>
    </Panel>
  );
}
