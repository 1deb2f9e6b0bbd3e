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
  waitAside: "until a job begins, in an hour",
  done: "Done in an hour",
  doneAside: (running: number) => `${number.format(running)} running`,
  failed: "Failed",
  failedAside: (count: number) => (count ? `${plural(count, "job")} in an hour` : "none in an hour"),
  busy: "Slots busy",
  busyOf: (busy: number, slots: number) => `${number.format(busy)} of ${number.format(slots)}`,
  /** A slot is one job at a time; a GPU may have several. */
  busyAside: (workers: number) => `on ${plural(workers, "worker")} online`,
  tokens: "Tokens in an hour",
  tokensAside: "paid for jobs",
  percent: (part: number) => percent.format(part),
  compact: (value: number) => compact.format(value),
  seconds: (value: number) => (value === 0 ? "0 s" : duration(value)),
  none: "–",
  charts: "How it went",
  chart: {
    waiting: "Queue depth",
    wait: "Wait until a job begins",
    throughput: (per: string) => `Throughput, jobs ${per}`,
    errors: "Error rate",
    busy: "Slots busy",
    tokens: (per: string) => `Tokens ${per}`,
  },
  per: { hour: "a minute", day: "an hour", week: "an hour" } as Readonly<Record<string, string>>,
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
  told: (name: string, over: string, now: string, highest: string) =>
    `${name} ${over}: ${now} at the end, ${highest} at most`,
  toldNothing: (name: string, over: string) => `${name} ${over}: nothing was recorded`,
  noSamplesTitle: "No figures yet",
  noSamples: (hasWorkers: boolean) =>
    hasWorkers
      ? "One is recorded each minute: the first will be here in a moment. Run something to see it move."
      : "One is recorded each minute. Add a worker to have something run: the charts follow by themselves.",
  noValues: "Nothing in this time",
  clock: (seconds: number) => time.format(new Date(seconds * 1000)),
  day: (seconds: number) => day.format(new Date(seconds * 1000)),
  attention: {
    title: "Needs attention",
    nothing: "Nothing needs you.",
    unknown: "Not everything could be looked at",
    unknownAside: "There may be more that needs somebody: it is asked for again and again.",
    pending: (count: number, first: string) =>
      count === 1 ? `${isolated(first)} is shut out` : `${plural(count, "worker")} are shut out`,
    pendingAside: "It gets no jobs until somebody approves it.",
    breaker: (fleet: string) => `${isolated(fleet)} launches nothing`,
    breakerAside: (failed: number) => `${plural(failed, "launch", "launches")} in a row never became a worker.`,
    noLeader: (fleet: string) => `Nobody scales ${isolated(fleet)}`,
    noLeaderAside: "No process decides for it: start one with comfyrelay fleet run.",
    dead: (count: number, isMore: boolean) =>
      `${plural(count, "webhook delivery", "webhook deliveries")}${isMore ? " or more" : ""} given up`,
    deadAside: "Their receivers did not answer in time. Look at them, and deliver them again.",
    offline: (count: number, first: string) =>
      count === 1 ? `${isolated(first)} is offline` : `${plural(count, "worker")} are offline`,
    offlineAside: "Not heard of for a while. Each goes on by itself when it is back.",
    nobody: (waiting: number) =>
      `${plural(waiting, "job")} ${waiting === 1 ? "waits" : "wait"}, and no worker is online`,
    nobodyAside: "Add a worker, or look why they are away.",
    failing: (part: number) => `${percent.format(part)} of the jobs of the last hour failed`,
    failingAside: "Look at their errors.",
    paused: (fleet: string) => `${isolated(fleet)} is paused`,
    pausedAside: "No machine is launched or ended until it goes on.",
    open: "Look",
    approve: "Approve",
  },
  decisions: "Why fleets did what they did",
  noDecisions: "No fleet is scaled by this server.",
  running: "Running now",
  runningAll: (count: number) => `All ${number.format(count)}`,
  nothingRuns: "Nothing runs at the moment.",
  addWorker: "Add a worker",
};
