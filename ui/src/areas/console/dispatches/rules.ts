// Status, times and allowed actions of a dispatch.

import { isCalendarDay } from "@/lib/search-params";
import { dispatches as texts } from "@/texts/console-dispatches";
import type { Dispatch, DispatchesQuery, SupportJob } from "../queries/dispatches";
import { hasEnded } from "../queries/dispatches";
import { stageOf } from "../queries/fleets";
import type { Tone } from "../shared/panels";

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

/** Waiting time, running time or duration. */
export function dispatchTime(dispatch: Dispatch, now: number): string {
  const since = (at: string | null) => (at ? Math.max(0, (now - Date.parse(at)) / 1000) : 0);
  if (dispatch.status === "leased") return texts.runs(since(dispatch.leased_at));
  if (!hasEnded(dispatch.status)) return texts.waited(since(dispatch.created_at));
  return dispatch.duration_seconds === null ? "" : texts.took(dispatch.duration_seconds);
}

export const BULK_ACTIONS = ["cancel", "retry", "run_free", "refund"] as const;
export type BulkAction = (typeof BULK_ACTIONS)[number];

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
