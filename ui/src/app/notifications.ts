// A message of the browser when a batch, or a job that belongs to none, has ended. It is off until somebody switches it on.

import { useState } from "react";
import type { Batch, Job } from "@/api/types";
import { toast } from "@/kit";
import { useLiveEvent } from "@/live";
import type { Changed } from "@/live/apply";
import { common } from "@/texts/common";
import { useStored } from "./stored";

const isThere = () => "Notification" in globalThis && globalThis.isSecureContext;

export function useNotifications(): { isOn: boolean; isPossible: boolean; change: (isOn: boolean) => Promise<void> } {
  const [value, set] = useStored("notify");
  const isOn = value === "on" && isThere() && Notification.permission === "granted";
  const change = async (wanted: boolean) => {
    if (!wanted) return set(null);
    if (!isThere()) return toast({ text: common.notifications.missing, tone: "bad" });
    const answer = Notification.permission === "granted" ? "granted" : await Notification.requestPermission();
    if (answer === "granted") set("on");
    else toast({ text: common.notifications.blocked, tone: "bad" });
  };
  return { isOn, isPossible: isThere(), change };
}

export interface End {
  id: string;
  isBatch: boolean;
  label: string | null;
  failed: number;
  completed: number;
  total: number;
}

/** Tells of batches, and of jobs that belong to none, when they end: each once, and not of what ended before. */
export class Ends {
  private readonly reported = new Set<string>();

  constructor(private readonly since: number) {}

  endedIn({ jobs = [], batches = [] }: Changed): End[] {
    const ended = jobs.filter((each) => each.completed_at && Date.parse(each.completed_at) >= this.since);
    const alone = ended.filter((each) => !each.batch_id && each.status !== "canceled").map(endOfJob);
    const byBatch = new Set(ended.map((each) => each.batch_id));
    for (const each of batches) if (each.done < each.total) this.reported.delete(each.id);
    const whole = batches.filter((each) => each.done >= each.total && byBatch.has(each.id)).map(endOfBatch);
    return [...whole, ...alone].filter(({ id }) => {
      const isNew = !this.reported.has(id);
      this.reported.add(id);
      return isNew;
    });
  }
}

const endOfJob = ({ id, label, status }: Job): End => ({
  id,
  isBatch: false,
  label,
  failed: status === "failed" ? 1 : 0,
  completed: status === "completed" ? 1 : 0,
  total: 1,
});

const endOfBatch = ({ id, label, counts, total }: Batch): End => ({
  id,
  isBatch: true,
  label,
  failed: counts.failed ?? 0,
  completed: counts.completed ?? 0,
  total,
});

export function useEnds(onEnd: (end: End) => void): void {
  const [ends] = useState(() => new Ends(Date.now()));
  useLiveEvent("changed", (changed) => {
    for (const each of ends.endedIn(changed)) onEnd(each);
  });
}

export function notify(end: End, onClick: () => void): void {
  const { notifications: words } = common;
  const label = end.label ?? words.unnamed;
  const shown = new Notification(end.failed ? words.endedSome(label, end.failed) : words.ended(label), {
    body: words.body(end.completed, end.total),
    icon: "/icon.svg",
    // of many single jobs the newest is enough
    tag: end.isBatch ? end.id : "job",
  });
  shown.onclick = () => {
    window.focus();
    shown.close();
    onClick();
  };
}
