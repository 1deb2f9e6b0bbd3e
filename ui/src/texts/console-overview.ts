// The first page of the console: what runs, how it went, and what needs somebody.

import { duration, isolated, number, plural } from "./common";

const percent = new Intl.NumberFormat("en", { style: "percent", maximumFractionDigits: 1 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const time = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", hour12: false });
const day = new Intl.DateTimeFormat("en", { weekday: "short", day: "numeric" });

export const overview = {
  range: "Range",
  ranges: { hour: "Hour", day: "Day", week: "Week" },
  over: { hour: "over the last hour", day: "over the last day", week: "over the last week" } as Readonly<
    Record<string, string>
  >,
  tiles: "Now",
  waiting: "Waiting",
  waitingAside: (seconds: number | null) => (seconds === null ? "nothing waits" : `oldest ${duration(seconds)}`),
  wait: "Wait",
  waitAside: "until a job starts, last hour",
  done: "Done, last hour",
  doneAside: (running: number) => `${number.format(running)} running`,
  failed: "Failed",
  failedAside: (count: number) => (count ? `${plural(count, "job")} in the last hour` : "none in the last hour"),
  busy: "Slots busy",
  busyOf: (busy: number, slots: number) => `${number.format(busy)} of ${number.format(slots)}`,
  /** A slot is one job at a time; a GPU may have several. */
  busyAside: (workers: number) => `on ${plural(workers, "worker")} online`,
  tokens: "Tokens, last hour",
  tokensAside: "paid for jobs",
  percent: (part: number) => percent.format(part),
  compact: (value: number) => compact.format(value),
  seconds: (value: number) => (value === 0 ? "0 s" : duration(value)),
  none: "–",
  charts: "How it went",
  chart: {
    waiting: "Queue depth",
    wait: "Wait until a job starts",
    throughput: (per: string) => `Throughput, jobs ${per}`,
    errors: "Error rate",
    busy: "Slots busy",
    tokens: (per: string) => `Tokens ${per}`,
  },
  per: { hour: "per minute", day: "per hour", week: "per hour" } as Readonly<Record<string, string>>,
  line: {
    waiting: "waiting",
    wait: "wait",
    done: "done",
    failed: "failed",
    errors: "of jobs that ended",
    busy: "busy",
    slots: "in all",
    tokens: "tokens",
  },
  /** For who hears the page. */
  summary: (name: string, over: string, now: string, highest: string) =>
    `${name} ${over}: ${now} at the end, ${highest} at most`,
  summaryOfNothing: (name: string, over: string) => `${name} ${over}: nothing was recorded`,
  noSamplesTitle: "No figures yet",
  noSamples: (hasWorkers: boolean) =>
    hasWorkers
      ? "One is recorded each minute: the first will be here in a moment. Run something to see it move."
      : "One is recorded each minute. Add a worker to have something run: the charts then fill by themselves.",
  noValues: "Nothing in this time",
  clock: (seconds: number) => time.format(new Date(seconds * 1000)),
  day: (seconds: number) => day.format(new Date(seconds * 1000)),
  attention: {
    title: "Needs attention",
    nothing: "Nothing needs attention.",
    unknown: "Not everything could be checked",
    unknownAside: "There may be more that needs attention: the check is repeated.",
    pending: (count: number, first: string) =>
      count === 1 ? `${isolated(first)} is revoked` : `${plural(count, "worker")} are revoked`,
    pendingAside: "It gets no jobs until somebody approves it.",
    breaker: (fleet: string) => `${isolated(fleet)} launches nothing`,
    breakerAside: (failed: number) => `${plural(failed, "launch", "launches")} in a row never became a worker.`,
    noLeader: (fleet: string) => `Nobody scales ${isolated(fleet)}`,
    noLeaderAside: "No process decides for it: start one with comfyrelay fleet run.",
    dead: (count: number, isMore: boolean) =>
      `${plural(count, "webhook delivery", "webhook deliveries")}${isMore ? " or more" : ""} given up`,
    deadAside: "Their receivers did not answer in time. Check them, and send them again.",
    offline: (count: number, first: string) =>
      count === 1 ? `${isolated(first)} is offline` : `${plural(count, "worker")} are offline`,
    offlineAside: "No contact for a while. Each continues by itself when it is back.",
    nobody: (waiting: number) =>
      `${plural(waiting, "job")} ${waiting === 1 ? "waits" : "wait"}, and no worker is online`,
    nobodyAside: "Add a worker, or check why they are offline.",
    failing: (part: number) => `${percent.format(part)} of the jobs of the last hour failed`,
    failingAside: "Check their errors.",
    paused: (fleet: string) => `${isolated(fleet)} is paused`,
    pausedAside: "No machine is launched or ended until it is resumed.",
    open: "Open",
    approve: "Approve",
  },
  decisions: "Why fleets did what they did",
  noDecisions: "No fleet is scaled by this server.",
  running: "Running now",
  runningAll: (count: number) => `All ${number.format(count)}`,
  nothingRuns: "Nothing runs at the moment.",
  addWorker: "Add a worker",
};
