// Status, times and allowed actions of a dispatch.

import { dispatches as texts } from "@/texts/console-dispatches";
import type { Dispatch, DispatchesQuery } from "../queries/dispatches";
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

type Search = Readonly<Partial<Record<"q" | "status" | "stage" | "workflow" | "tenant" | "worker", string>>>;

/** Maps search parameters to the request. */
export function parseDispatchesQuery({ q, status, stage, workflow, tenant, worker }: Search): DispatchesQuery {
  const knownStatus = STATUSES.find((each) => each === status);
  const knownStage = stageOf(stage);
  const search = q?.trim();
  return {
    ...(knownStatus && { status: knownStatus }),
    ...(knownStage && { stage: knownStage }),
    ...(workflow && { workflow }),
    ...(tenant && { tenant }),
    ...(worker && { worker }),
    ...(search && { search }),
  };
}
