// Browser notifications about finished batches and single jobs. They are off by default.

import { useState } from "react";
import type { Batch, Job } from "@/api/types";
import { toast } from "@/kit";
import { useLocalStorage } from "@/lib/local-storage";
import { useLiveEvent } from "@/live";
import type { Changed } from "@/live/cache-updater";
import { common } from "@/texts/common";

const isSupported = () => "Notification" in globalThis && globalThis.isSecureContext;

export function useNotifications(): { isOn: boolean; isPossible: boolean; change: (isOn: boolean) => Promise<void> } {
  const [value, set] = useLocalStorage("notify");
  const isOn = value === "on" && isSupported() && Notification.permission === "granted";
  const change = async (wanted: boolean) => {
    if (!wanted) return set(null);
    if (!isSupported()) return toast({ text: common.notifications.missing, tone: "bad" });
    const answer = Notification.permission === "granted" ? "granted" : await Notification.requestPermission();
    if (answer === "granted") set("on");
    else toast({ text: common.notifications.blocked, tone: "bad" });
  };
  return { isOn, isPossible: isSupported(), change };
}

export interface Finished {
  id: string;
  isBatch: boolean;
  label: string | null;
  failed: number;
  completed: number;
  total: number;
}

/** Finds batches and single jobs that have finished. Reports each once, and none that finished before `since`. */
export class FinishedWork {
  private readonly reported = new Set<string>();

  constructor(private readonly since: number) {}

  finishedIn({ jobs = [], batches = [] }: Changed): Finished[] {
    const ended = jobs.filter((each) => each.completed_at && Date.parse(each.completed_at) >= this.since);
    const singleJobs = ended.filter((each) => !each.batch_id && each.status !== "canceled").map(finishedJob);
    const byBatch = new Set(ended.map((each) => each.batch_id));
    for (const each of batches) if (each.done < each.total) this.reported.delete(each.id);
    const wholeBatches = batches.filter((each) => each.done >= each.total && byBatch.has(each.id)).map(finishedBatch);
    return [...wholeBatches, ...singleJobs].filter(({ id }) => {
      const isNew = !this.reported.has(id);
      this.reported.add(id);
      return isNew;
    });
  }
}

const finishedJob = ({ id, label, status }: Job): Finished => ({
  id,
  isBatch: false,
  label,
  failed: status === "failed" ? 1 : 0,
  completed: status === "completed" ? 1 : 0,
  total: 1,
});

const finishedBatch = ({ id, label, counts, total }: Batch): Finished => ({
  id,
  isBatch: true,
  label,
  failed: counts.failed ?? 0,
  completed: counts.completed ?? 0,
  total,
});

export function useFinishedWork(onFinished: (finished: Finished) => void): void {
  const [work] = useState(() => new FinishedWork(Date.now()));
  useLiveEvent("changed", (changed) => {
    for (const each of work.finishedIn(changed)) onFinished(each);
  });
}

export function notify(finished: Finished, onClick: () => void): void {
  const { notifications: texts } = common;
  const label = finished.label ?? texts.unnamed;
  const shown = new Notification(finished.failed ? texts.endedSome(label, finished.failed) : texts.ended(label), {
    body: texts.body(finished.completed, finished.total),
    icon: "/icon.svg",
    // a notification about a single job replaces the previous one
    tag: finished.isBatch ? finished.id : "job",
  });
  shown.onclick = () => {
    window.focus();
    shown.close();
    onClick();
  };
}
