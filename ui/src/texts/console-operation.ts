import { number, plural } from "./common";

export const webhooks = {
  filters: { all: "All", dead: "Dead", failing: "Failing", pending: "Pending", delivered: "Delivered" } as Readonly<
    Record<string, string>
  >,
  about: "Requests to the webhook URLs of users. A delivery that failed too often is dead until you resend it.",
  emptyTitle: "No deliveries",
  empty: {
    dead: "No dead deliveries.",
    failing: "No failing deliveries.",
    delivered: "No delivered webhooks yet.",
    pending: "No pending deliveries.",
    all: "No webhooks sent yet.",
  } as Readonly<Record<string, string>>,
  columns: {
    event: "Event",
    to: "To",
    tenant: "Tenant",
    status: "State",
    attempts: "Attempts",
    at: "When",
    problem: "Last response",
    actions: "Actions",
  },
  redeliver: "Resend",
  redeliverOf: (what: string) => `Resend to ${what}`,
  redelivered: "Resending.",
  ofJob: (id: string) => `job ${id}`,
  answered: (status: number) => `responded ${status}`,
  outbox: {
    title: "Stuck outbox entries",
    about: "Changes that one database could not deliver to another. The server retries until they arrive.",
    none: "No stuck entries.",
    what: (direction: string, jobs: number, shard: string) =>
      direction === "to_queue"
        ? `${plural(jobs, "job")} of shard ${shard} not in the queue yet`
        : `${plural(jobs, "queue decision")} not applied in shard ${shard} yet`,
  },
};

export const reconcile = {
  about: "Compares the queue, jobs and ledger and reports mismatches. It does not change anything.",
  run: "Run check",
  running: "Checking…",
  runningSince: "Started",
  progress: "Checking",
  lastRun: "Last check",
  neverRun: "No check yet",
  neverRunText: "The server repairs most mismatches automatically. Run a check to find the rest.",
  allWell: "No mismatches",
  allWellText: (jobs: number | null) =>
    jobs === null ? "The check found no mismatches." : `Compared ${plural(jobs, "job")}.`,
  found: (count: number) => plural(count, "mismatch", "mismatches"),
  first: (shown: number) => `Showing the first ${number.format(shown)}.`,
  shardsDown: (shards: string) => `Unreachable shards, not compared: ${shards}.`,
  failed: "The last check failed",
  shard: (name: string) => `shard ${name}`,
  dispatch: (id: number) => `dispatch ${id}`,
  job: (id: string) => `job ${id}`,
  tenant: "tenant",
  kind: (kind: string) => kind.replaceAll("_", " "),
  howto: "See the reconcile guide for the meaning of each mismatch and how to fix it.",
};

export const settings = {
  find: "Search settings",
  about: "Current settings. Change them in the server's environment.",
  columns: { name: "Setting", value: "Value", source: "Source" },
  sources: {
    default: "default",
    environment: "environment",
    file: "file",
  } as Readonly<Record<string, string>>,
  hidden: "set (hidden)",
  unset: "not set",
  filters: { all: "All", changed: "Changed" },
  version: (version: string) => `Version ${version}`,
};

export const audit = {
  about: "Changes that people made on this server, newest first. Secrets are never recorded.",
  find: "Search person, object or action",
  export: { csv: "CSV", jsonl: "JSON lines" },
  empty: "No changes yet",
  emptyText: "Changes to prices, roles, tokens, settings and other objects appear here.",
  onHost: "on the server",
  unknown: "outcome unknown",
  columns: { who: "Who", what: "What", change: "Before and after", at: "When" },
};

export const alerts = {
  title: "Alerts",
  about: "Messages about problems, by mail, Slack, ntfy and other services. Set COMFYRELAY_ALERTS to change them.",
  none: "No alerts are set up.",
  rule: (name: string) => (name === "*" ? "all other problems" : name),
  quiet: (minutes: number) => plural(minutes, "minute"),
  never: "never",
  test: "Test",
  testOf: (rule: string) => `Test the alert for ${rule}`,
  sent: "Test alert sent.",
  failed: (url: string, why: string) => `${url}: ${why}`,
  columns: { rule: "Problem", urls: "Goes to", quiet: "Quiet for", last: "Last alert", actions: "Actions" },
};
