// What is shown of a dispatch, and what can be done with it.

import { dispatches as texts } from "@/texts/console-dispatches";
import type { Dispatch, DispatchesAsked } from "../data";
import type { Tone } from "../parts";
import { isOver } from "./ended";

export const STATUSES = ["queued", "leased", "failed", "completed", "canceled", "paused"] as const;

const TONES: Readonly<Record<string, Tone>> = {
  queued: "info",
  leased: "accent",
  completed: "good",
  failed: "bad",
  canceled: "muted",
  paused: "warn",
};
export const toneOf = (status: string): Tone => TONES[status] ?? "muted";

export interface Verbs {
  cancel: boolean;
  retry: boolean;
  priority: boolean;
}

/** As the server would allow it. */
export const verbsOf = ({ status, cancel_requested_at }: Dispatch): Verbs => ({
  cancel: !isOver(status) && cancel_requested_at === null,
  retry: status === "failed" || status === "canceled",
  priority: !isOver(status),
});

/** How long it waits, runs, or took. */
export function timeOf(dispatch: Dispatch, now: number): string {
  const since = (at: string | null) => (at ? Math.max(0, (now - Date.parse(at)) / 1000) : 0);
  if (dispatch.status === "leased") return texts.runs(since(dispatch.leased_at));
  if (!isOver(dispatch.status)) return texts.waited(since(dispatch.created_at));
  return dispatch.duration_seconds === null ? "" : texts.took(dispatch.duration_seconds);
}

type Search = Readonly<Partial<Record<"q" | "status" | "stage" | "workflow" | "tenant" | "worker", string>>>;

/** What the address asks for, in the words of the server. */
export function askedBy({ q, status, stage, workflow, tenant, worker }: Search): DispatchesAsked {
  const given = { status, stage, workflow, tenant, worker, search: q?.trim() };
  return Object.fromEntries(Object.entries(given).filter(([, value]) => value)) as DispatchesAsked;
}
