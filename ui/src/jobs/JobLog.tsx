import { useEffect, useRef, useState } from "react";
import { get } from "@/api/client";
import type { Job } from "@/api/types";
import { Heading } from "@/kit";
import { job as texts } from "@/texts/job";
import { hasEnded } from "./job";
import section from "./section.module.css";

const PAGE_LINES = 200;
const MAX_LINES = 5000;
const POLL_MS = 1500;

interface LogLine {
  line: string;
  created_at: string;
}

/** The output of the workers, updated while the job runs. */
export function JobLog({ job }: { job: Job }) {
  const [lines, setLines] = useState<LogLine[]>([]);
  const pre = useRef<HTMLPreElement>(null);
  const isFinished = hasEnded(job);
  useEffect(() => {
    const stop = new AbortController();
    let timer: ReturnType<typeof setTimeout>;
    let cursor: string | null = null;
    let complete: LogLine[] = [];
    const read = async () => {
      try {
        for (;;) {
          const page = await get("/api/ai-jobs/{job_id}/logs", {
            path: { job_id: job.id },
            query: { limit: PAGE_LINES, ...(cursor && { cursor }) },
            signal: stop.signal,
          });
          // the last page is read again: it may still grow
          setLines([...complete, ...page.items].slice(-MAX_LINES));
          if (!page.next_cursor) break;
          complete = [...complete, ...page.items].slice(-MAX_LINES);
          cursor = page.next_cursor;
        }
      } catch {
        // the next poll tries again
      }
      if (!stop.signal.aborted && !isFinished) timer = setTimeout(poll, POLL_MS);
    };
    // pause in a hidden tab
    const poll = () => {
      if (document.hidden) document.addEventListener("visibilitychange", poll, { once: true, signal: stop.signal });
      else void read();
    };
    poll();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [job.id, isFinished]);
  const count = lines.length;
  useEffect(() => {
    const node = pre.current;
    // follow the end of the log, unless the user has scrolled up
    if (count && node && node.scrollHeight - node.scrollTop - node.clientHeight < 120)
      node.scrollTop = node.scrollHeight;
  }, [count]);
  if (!count) return null;
  return (
    <section className={section.section}>
      <Heading>{texts.log}</Heading>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: the keyboard scrolls it */}
      <pre ref={pre} className={section.code} tabIndex={0} role="log" aria-label={texts.log}>
        {lines.map((each) => each.line).join("\n")}
      </pre>
    </section>
  );
}
