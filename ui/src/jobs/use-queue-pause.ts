// Pauses and resumes the whole queue. While it is paused, no job starts, including jobs added later.

import { useQuery, useQueryClient } from "@tanstack/react-query";
import { post } from "@/api/client";
import { counts } from "@/api/queries";
import { toast, toastProblem } from "@/kit";
import { common } from "@/texts/common";

const AFFECTED_QUERIES: readonly string[] = ["queue", "slots", "counts", "job", "jobs", "batch"];

interface QueuePause {
  isPaused: boolean;
  /** Number of jobs that the paused queue holds. */
  held: number;
  pause: (mode: "after" | "now") => void;
  resume: () => void;
}

export function useQueuePause(): QueuePause {
  const client = useQueryClient();
  const { data } = useQuery(counts);
  const isPaused = Boolean(data?.pausedAt);
  const send = async (request: Promise<unknown>, text: string) => {
    try {
      await request;
      toast({ text, tone: "good", topic: "queue-pause" });
    } catch (thrown) {
      toastProblem(thrown);
    }
    await client.invalidateQueries({ predicate: ({ queryKey: [key] }) => AFFECTED_QUERIES.includes(String(key)) });
  };
  return {
    isPaused,
    held: isPaused ? (data?.waiting ?? 0) : 0,
    pause: (mode) => void send(post("/api/queue/pause", { body: { mode } }), common.pause.paused),
    resume: () => void send(post("/api/queue/resume"), common.pause.resumed),
  };
}
