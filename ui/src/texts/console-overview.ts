// Console overview: current load, history and notices.

import { duration, isolated, number, plural } from "./common";

const percent = new Intl.NumberFormat("en", { style: "percent", maximumFractionDigits: 1 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const time = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", hour12: false });
const day = new Intl.DateTimeFormat("en", { weekday: "short", day: "numeric" });

const OUTAGES: Readonly<Record<string, (name: string) => string>> = {
  central: () => "The central database is down",
  shard: (name) => `The database ${name} is down`,
  schema: (name) => `The database ${name} needs a migration`,
  storage: () => "Object storage is down",
  disk: () => "A disk is nearly full",
  clock: () => "The clocks differ",
  certificate: (name) => `The certificate of ${name} needs attention`,
};

export const overview = {
  range: "Range",
  ranges: { hour: "Hour", day: "Day", week: "Week" },
  over: { hour: "over the last hour", day: "over the last day", week: "over the last week" } as Readonly<
    Record<string, string>
  >,
  tiles: "Now",
  waiting: "Waiting",
  /** `unrunnable` is part of `queued`. */
  waitingAside: (queued: number, unrunnable: number, oldestSeconds: number) => {
    if (queued === 0) return "queue is empty";
    if (unrunnable === 0) return `oldest ${duration(oldestSeconds)}`;
    if (unrunnable < queued) return `no worker can run ${number.format(unrunnable)} of them`;
    return `no worker can run ${unrunnable === 1 ? "it" : "them"}`;
  },
  wait: "Wait",
  waitAside: "until start, last hour",
  done: "Done, last hour",
  doneAside: (running: number) => `${number.format(running)} running`,
  failed: "Failed",
  failedAside: (count: number) => (count ? `${plural(count, "job")} in the last hour` : "none in the last hour"),
  busy: "Slots busy",
  busyOf: (busy: number, slots: number) => `${number.format(busy)} of ${number.format(slots)}`,
  /** A slot runs one job at a time; a GPU may have several. */
  busyAside: (workers: number) => `on ${plural(workers, "worker")} online`,
  tokens: "Tokens, last hour",
  tokensAside: "spent on jobs",
  percent: (part: number) => percent.format(part),
  compact: (value: number) => compact.format(value),
  seconds: (value: number) => (value === 0 ? "0 s" : duration(value)),
  none: "–",
  charts: "History",
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
    errors: "of finished jobs",
    busy: "busy",
    slots: "total",
    tokens: "tokens",
  },
  /** Chart description for screen readers. */
  summary: (name: string, over: string, now: string, highest: string) =>
    `${name} ${over}: now ${now}, maximum ${highest}`,
  emptySummary: (name: string, over: string) => `${name} ${over}: no data`,
  noSamplesTitle: "No data yet",
  noSamples: (hasWorkers: boolean) =>
    hasWorkers
      ? "The server records data every minute. Run a job to see activity."
      : "The server records data every minute. Add a worker to run jobs.",
  noValues: "No data in this range",
  clock: (seconds: number) => time.format(new Date(seconds * 1000)),
  day: (seconds: number) => day.format(new Date(seconds * 1000)),
  attention: {
    title: "Needs attention",
    nothing: "Nothing needs attention.",
    unknown: "Some checks failed",
    unknownAside: "This list may be incomplete. The checks are retried.",
    pending: (count: number, first: string) =>
      count === 1 ? `${isolated(first)} is revoked` : `${plural(count, "worker")} are revoked`,
    pendingAside: "Revoked workers get no jobs until you approve them.",
    breaker: (fleet: string) => `${isolated(fleet)} stopped launching machines`,
    breakerAside: (failed: number) => `${plural(failed, "consecutive launch round")} produced no worker.`,
    noLeader: (fleet: string) => `${isolated(fleet)} has no autoscaler`,
    noLeaderAside: "Start one with comfyrelay fleet run.",
    dead: (count: number, isMore: boolean) =>
      isMore
        ? `${number.format(count)} or more webhook deliveries abandoned`
        : `${plural(count, "webhook delivery", "webhook deliveries")} abandoned`,
    deadAside: "The receivers did not respond. Check them and resend the deliveries.",
    offline: (count: number, first: string) =>
      count === 1 ? `${isolated(first)} is offline` : `${plural(count, "worker")} are offline`,
    offlineAside: "Offline workers continue automatically when they reconnect.",
    broken: (count: number, first: string) =>
      count === 1 ? `${isolated(first)} has no ComfyUI` : `${plural(count, "worker")} have no ComfyUI`,
    brokenAside: "ComfyUI stopped, or has not started yet. The worker's page shows ComfyUI's last log lines.",
    unrunnable: (count: number) => `${plural(count, "job")} that no worker can run`,
    unrunnableAside: "No online worker meets their requirements. Each job lists what is missing.",
    waitingOffline: (count: number) => `${plural(count, "job")} that only offline workers can run`,
    waitingOfflineAside: "These jobs wait until one of these workers is online again.",
    outage: (kind: string, name: string) => {
      const title = OUTAGES[kind];
      return title === undefined ? isolated(name) : title(isolated(name));
    },
    nobody: (waiting: number) => `${plural(waiting, "job")} waiting, no worker online`,
    nobodyAside: "Add a worker, or check why your workers are offline.",
    failing: (part: number) => `${percent.format(part)} of jobs failed in the last hour`,
    failingAside: "Check the failed jobs.",
    paused: (fleet: string) => `${isolated(fleet)} is paused`,
    pausedAside: "Autoscaling is off until you resume it.",
    open: "Open",
    approve: "Approve",
  },
  decisions: "Autoscaling decisions",
  noDecisions: "No autoscaled fleets.",
  running: "Running now",
  runningAll: (count: number) => `All ${number.format(count)}`,
  nothingRuns: "No running jobs.",
  addWorker: "Add worker",
};
