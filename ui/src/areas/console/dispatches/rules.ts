// Status, times and allowed actions of a dispatch.

import type { components } from "@/api/schema";
import { isCalendarDay } from "@/lib/search-params";
import { console as shared } from "@/texts/console";
import { dispatches as texts } from "@/texts/console-dispatches";
import type { Dispatch, DispatchesQuery, SupportJob } from "../queries/dispatches";
import { hasEnded } from "../queries/dispatches";
import { stageOf } from "../queries/fleets";
import type { Tone } from "../shared/panels";

type BulkResult = components["schemas"]["BulkResult"];

export const STATUSES = ["queued", "leased", "failed", "completed", "canceled", "paused"] as const;

const TONES: Readonly<Record<string, Tone>> = {
  queued: "info",
  leased: "accent",
  completed: "good",
  failed: "bad",
  canceled: "muted",
  paused: "warn",
};
export const statusTone = (status: string): Tone => TONES[status] ?? "muted";

export interface AllowedActions {
  cancel: boolean;
  retry: boolean;
  priority: boolean;
}

/** Mirrors the rules of the server. */
export const allowedActions = ({ status, cancel_requested_at }: Dispatch): AllowedActions => ({
  cancel: !hasEnded(status) && cancel_requested_at === null,
  retry: status === "failed" || status === "canceled",
  priority: !hasEnded(status),
});

/** A run to the end always takes time, which costs nothing only if it has no price. */
export const runCost = (cost: number, ending: string | null): string =>
  shared.cost(cost, ending === "completed" || ending === "failed" ? 1 : 0);

/** Waiting time, running time or duration. */
export function dispatchTime(dispatch: Dispatch, now: number): string {
  const since = (at: string | null) => (at ? Math.max(0, (now - Date.parse(at)) / 1000) : 0);
  if (dispatch.status === "leased") return texts.runs(since(dispatch.leased_at));
  if (!hasEnded(dispatch.status)) return texts.waited(since(dispatch.created_at));
  return dispatch.duration_seconds === null ? "" : texts.took(dispatch.duration_seconds);
}

export const BULK_ACTIONS = ["cancel", "retry", "run_free", "refund"] as const;
export type BulkAction = (typeof BULK_ACTIONS)[number];

const MAX_SHOWN = 3;

/** The result of a bulk action, with the jobs that were refused. */
export function resultOf({ changed, matched, refused }: Pick<BulkResult, "changed" | "matched" | "refused">): string {
  const { done, refused: refusedText, moreRefused } = texts.bulk;
  const left = refused.length - MAX_SHOWN;
  const shown = refused.slice(0, MAX_SHOWN).map(({ id, detail }) => refusedText(id, detail));
  return [done(changed, matched), ...shown, ...(left > 0 ? [moreRefused(left)] : [])].join(" ");
}

/** The tokens that an administrator can still refund. */
export const refundableTokens = ({
  charged_tokens,
  refunded_tokens,
}: Pick<SupportJob["job"], "charged_tokens" | "refunded_tokens">): number =>
  refunded_tokens ? 0 : (charged_tokens ?? 0);

const FIELDS = ["workflow", "tenant", "worker", "effect", "user"] as const;
type Search = Readonly<Partial<Record<"q" | "status" | "stage" | "from" | "to" | (typeof FIELDS)[number], string>>>;

/** Maps search parameters to the request. */
export function parseDispatchesQuery({ q, status, stage, from, to, ...rest }: Search): DispatchesQuery {
  const knownStatus = STATUSES.find((each) => each === status);
  const knownStage = stageOf(stage);
  const search = q?.trim();
  return {
    ...(knownStatus && { status: knownStatus }),
    ...(knownStage && { stage: knownStage }),
    ...Object.fromEntries(FIELDS.flatMap((name) => (rest[name] ? [[name, rest[name]]] : []))),
    ...(from && isCalendarDay(from) && { from }),
    ...(to && isCalendarDay(to) && { to }),
    ...(search && { search }),
  };
}
