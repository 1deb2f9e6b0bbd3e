import { number, plural } from "./common";

export const webhooks = {
  filters: { all: "All", dead: "Dead", failing: "Failing", pending: "Waiting", delivered: "Delivered" } as Readonly<
    Record<string, string>
  >,
  about:
    "What is sent to the addresses that users gave. A delivery that failed too often is dead until it is sent again.",
  emptyTitle: "Nothing here",
  empty: {
    dead: "No delivery is dead: everything reached who it was for, or is still being tried.",
    failing: "No delivery is failing.",
    delivered: "Nothing was delivered yet.",
    pending: "Nothing waits to be delivered.",
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
    about: "What one database should have told another long ago. It is tried again and again; nothing is lost.",
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
  runningSince: "It goes on, begun",
  progress: "Checking",
  lastRun: "Last check",
  neverRun: "Not checked yet",
  neverRunText: "The server mends most things by itself; this shows what is left.",
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
  howto: "What each of them means, and what to do, stands in the guide on reconciling.",
};

export const settings = {
  find: "Search settings",
  about: "As the server has them in force. They are set in its environment, and changed there.",
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
