import { number, plural } from "./common";

export const webhooks = {
  filters: { all: "All", dead: "Dead", failing: "Failing", pending: "Waiting", delivered: "Delivered" } as Readonly<
    Record<string, string>
  >,
  about:
    "What is sent to the addresses that users gave. A delivery that failed too often is dead until it is sent again.",
  emptyTitle: "Nothing here",
  empty: {
    dead: "No delivery is dead: everything was delivered, or is still being retried.",
    failing: "No delivery is failing.",
    delivered: "Nothing was delivered yet.",
    pending: "Nothing is waiting to be delivered.",
    all: "No webhook was called yet.",
  } as Readonly<Record<string, string>>,
  columns: {
    event: "Event",
    to: "To",
    tenant: "Tenant",
    status: "State",
    attempts: "Attempts",
    at: "When",
    problem: "Last answer",
    actions: "Actions",
  },
  redeliver: "Send again",
  redeliverOf: (what: string) => `Send again to ${what}`,
  redelivered: "It is sent again.",
  ofJob: (id: string) => `job ${id}`,
  answered: (status: number) => `answered ${status}`,
  outbox: {
    title: "Stuck between the databases",
    about:
      "Changes in one database that should have reached another long ago. They are retried until they do; nothing is lost.",
    none: "Nothing is stuck.",
    what: (direction: string, jobs: number, pool: string) =>
      direction === "to_queue"
        ? `${plural(jobs, "job")} of ${pool} not in the queue yet`
        : `${plural(jobs, "decision")} of the queue not known in ${pool} yet`,
  },
};

export const reconcile = {
  about: "Compares queue, jobs and ledger, and says what does not fit together. It changes nothing.",
  run: "Check now",
  running: "Checking…",
  runningSince: "Running, started",
  progress: "Checking",
  lastRun: "Last check",
  neverRun: "Not checked yet",
  neverRunText: "The server repairs most things by itself; this shows what is left.",
  allWell: "Everything fits together",
  allWellText: (jobs: number | null) =>
    jobs === null ? "Nothing was found." : `${plural(jobs, "job")} compared, and nothing was found.`,
  found: (count: number) => plural(count, "finding"),
  first: (shown: number) => `The first ${number.format(shown)} are shown.`,
  poolsDown: (pools: string) => `Not compared, because they cannot be reached: ${pools}.`,
  failed: "The last check failed",
  pool: (name: string) => `database ${name}`,
  dispatch: (id: number) => `dispatch ${id}`,
  job: (id: string) => `job ${id}`,
  tenant: "its tenant",
  kind: (kind: string) => kind.replaceAll("_", " "),
  howto: "The guide on reconciling explains what each of them means, and what to do.",
};

export const settings = {
  find: "Search settings",
  about: "The settings in force. They are set in the server's environment; change them there.",
  columns: { name: "Setting", value: "Value", source: "From" },
  sources: {
    default: "default",
    environment: "environment",
    file: "file",
  } as Readonly<Record<string, string>>,
  hidden: "set, and hidden",
  unset: "not set",
  filters: { all: "All", changed: "Set by you" },
  version: (version: string) => `Version ${version}`,
};
