import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { slots as slotsQuery } from "@/api/queries";
import type { Slot } from "@/api/types";
import { useLiveEvent } from "@/live";
import type { Progress } from "@/live/cache-updater";
import { queue as texts } from "@/texts/queue";

export type SlotJob = NonNullable<Slot["job"]>;
type LiveProgress = Pick<SlotJob, "progress" | "is_estimated" | "expected_seconds" | "step" | "steps" | "node_title">;

/** The slots of all workers, with the live progress of their jobs. */
export function useSlots(): Slot[] {
  const { data = [] } = useQuery(slotsQuery);
  const [live, setLive] = useState<ReadonlyMap<string, LiveProgress>>(new Map());
  useLiveEvent("progress", ({ jobs }) => setLive(new Map(jobs.map((each) => [each.id, liveProgress(each)]))));
  return data.map((slot) => {
    const newer = slot.job && live.get(slot.job.id);
    return slot.job && newer ? { ...slot, job: { ...slot.job, ...newer } } : slot;
  });
}

function liveProgress({ progress, expected_seconds }: Progress["jobs"][number]): LiveProgress {
  const { value, step, steps, node, is_estimated } = progress ?? {};
  return {
    progress: typeof value === "number" ? value : null,
    is_estimated: is_estimated === true,
    step: typeof step === "number" ? step : null,
    steps: typeof steps === "number" && steps ? steps : null,
    node_title: typeof node === "string" ? node : null,
    expected_seconds: expected_seconds ?? null,
  };
}

export function slotJobName(job: SlotJob): string {
  const label = job.label ?? texts.unnamed;
  return job.batch_id ? texts.itemOf(label, job.item_no + 1, job.total) : label;
}
