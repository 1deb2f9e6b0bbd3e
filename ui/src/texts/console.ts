// Texts shared by the console pages; each page has its own file.

import { number, plural } from "./common";

const moment = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "medium" });
const short = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const dayAndTime = new Intl.DateTimeFormat("en", {
  month: "short",
  day: "numeric",
  hour: "2-digit",
  minute: "2-digit",
  hour12: false,
});
const money = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const smallMoney = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 4 });

/** As in the table of `comfyrelay fleet costs`. */
function formatMoney(amount: number): string {
  if (amount > 0 && amount < 0.0001) return "<0.0001";
  return (amount < 1 ? smallMoney : money).format(amount);
}

export const console = {
  title: "Console",
  navigation: "Console",
  pages: {
    overview: "Overview",
    workers: "Workers",
    fleets: "Fleets",
    dispatches: "Dispatches",
    workflows: "Workflows",
    effects: "Effects",
    tenants: "Tenants",
    payments: "Payments",
    webhooks: "Webhooks",
    reconcile: "Reconcile",
    audit: "Audit",
    settings: "Settings",
    worker: "Worker",
    fleet: "Fleet",
    workflow: "Workflow",
    effect: "Effect",
    tenant: "Tenant",
  },
  live: { live: "Live", connecting: "Connecting…", polling: "Updated every 15 seconds" },
  all: "All",
  from: "From",
  to: "To",
  any: { fleet: "Any fleet", stage: "Any stage", workflow: "Any workflow" },
  stage: "Stage",
  stages: { production: "Production", staging: "Staging" } as Readonly<Record<string, string>>,
  fleet: "Fleet",
  never: "never",
  none: "none",
  unknown: "unknown",
  moment: (at: string) => moment.format(new Date(at)),
  /** Today: time with seconds; otherwise day and time. */
  at: (at: string, now = new Date()) => {
    const found = new Date(at);
    return found.toDateString() === now.toDateString() ? short.format(found) : dayAndTime.format(found);
  },
  money: formatMoney,
  /** The cost of `used` machines or seconds. `unpriced` of them have no price. Both may be sums of floats. */
  cost: (amount: number, used: number, unpriced = amount === 0 ? used : 0) =>
    unpriced === 0 ? formatMoney(amount) : used - unpriced < 0.001 ? "unknown" : `${formatMoney(amount)} + unknown`,
  perHour: (amount: number) => `${formatMoney(amount)} per hour`,
  showMore: "Show more",
  showSecret: "Show secret",
  hideSecret: "Hide secret",
  hidden: "••••••••",
  notFound: "Not found",
  failedToLoad: "Could not load",
  back: (page: string) => `Back to ${page}`,
  shownOf: (shown: number, all: number) => `${number.format(shown)} of ${number.format(all)}`,
  jobs: (count: number) => plural(count, "job"),
  workers: (count: number) => plural(count, "worker"),
  machines: (count: number) => plural(count, "machine"),
};

/** With seconds: `4 s ago`. */
export function seen(at: string, now = Date.now()): string {
  const seconds = Math.max(0, Math.round((now - Date.parse(at)) / 1000));
  if (seconds < 2) return "now";
  if (seconds < 90) return `${seconds} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 129_600) return `${Math.round(seconds / 3600)} h ago`;
  return `${plural(Math.round(seconds / 86_400), "day")} ago`;
}
