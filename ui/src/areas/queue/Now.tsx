// What runs now: one card for each GPU, with its live preview.

import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Cpu, TriangleAlert } from "lucide-react";
import { useEffect, useRef, useState } from "react";
import { comfyuiAway, job as jobQuery, lanes as lanesQuery } from "@/api/queries";
import type { Lane } from "@/api/types";
import { useSession } from "@/app/session";
import { LivePreview } from "@/areas/job/LivePreview";
import { Heading, Progress } from "@/kit";
import { Poster } from "@/kit/Poster";
import { useLiveEvent } from "@/live";
import { duration, isolated, size } from "@/texts/common";
import { queue as texts } from "@/texts/queue";
import styles from "./queue.module.css";

type LaneJob = NonNullable<Lane["job"]>;
type LiveProgress = Pick<LaneJob, "progress" | "expected_seconds" | "step" | "steps" | "node_title">;

export function useLanes(): Lane[] {
  const { data = [] } = useQuery(lanesQuery);
  const [newest, setNewest] = useState<ReadonlyMap<string, LiveProgress>>(new Map());
  useLiveEvent("progress", ({ jobs }) =>
    setNewest(
      new Map(
        jobs.map((each) => {
          const { value, step, steps, node } = each.progress ?? {};
          return [
            each.id,
            {
              progress: typeof value === "number" ? value : null,
              step: typeof step === "number" ? step : null,
              steps: typeof steps === "number" && steps ? steps : null,
              node_title: typeof node === "string" ? node : null,
              expected_seconds: each.expected_seconds ?? null,
            },
          ];
        }),
      ),
    ),
  );
  return data.map((lane) => {
    const newer = lane.job && newest.get(lane.job.id);
    return lane.job && newer ? { ...lane, job: { ...lane.job, ...newer } } : lane;
  });
}

interface NowProps {
  lanes: readonly Lane[];
  onOpen: (job: LaneJob) => void;
  /** Whether some of it is in sight. */
  onSeen: (isSeen: boolean) => void;
}

export function Now({ lanes, onOpen, onSeen }: NowProps) {
  const section = useRef<HTMLElement>(null);
  useEffect(() => {
    const seen = new IntersectionObserver((entries) => onSeen(entries.at(-1)?.isIntersecting ?? false));
    if (section.current) seen.observe(section.current);
    return () => {
      seen.disconnect();
      onSeen(false);
    };
  }, [onSeen]);
  return (
    <section ref={section} className={styles.now}>
      <Heading>{texts.now}</Heading>
      <div className={styles.lanes}>
        {lanes.map((lane, index) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: a lane of a worker is its place
          <LaneCard key={`${lane.worker_id} ${index}`} lane={lane} onOpen={onOpen} />
        ))}
      </div>
    </section>
  );
}

/** What runs, in one line: whoever looks at a part of the queue still sees it. */
export function Strip({ lanes, onOpen }: Pick<NowProps, "lanes" | "onOpen">) {
  const running = lanes.flatMap(({ job }) => (job ? [job] : []));
  if (!running.length) return null;
  return (
    <section className={styles.strip} aria-label={texts.now}>
      {running.map((job) => {
        const name = nameOf(job);
        return (
          <button key={job.id} type="button" onClick={() => onOpen(job)}>
            <span>{name}</span>
            <span className={styles.stripBar}>
              <Progress value={job.progress} name={texts.progress(name)} />
            </span>
          </button>
        );
      })}
    </section>
  );
}

function nameOf(job: LaneJob): string {
  const label = job.label ?? texts.unnamed;
  return job.batch_id ? texts.itemOf(label, job.item_no + 1, job.total) : label;
}

/** Of which ComfyUI it is said: the worker and the desk may have noticed different reasons, one after the other. */
const whose = (away: string) => away.split(": ")[0];

/** Why a ComfyUI cannot be used, where no lane says so: it is out of sight, shows a job, or never was there. */
export function Away({ lanes, isNowSeen }: { lanes: readonly Lane[]; isNowSeen: boolean }) {
  const { desk } = useSession();
  const { data: known = [] } = useQuery({ ...comfyuiAway, enabled: desk !== null });
  const seen = lanes.flatMap((each) => (each.away && isNowSeen && !each.job ? [each.away] : []));
  const shown = new Map([...known, ...lanes.flatMap((each) => each.away ?? [])].map((each) => [whose(each), each]));
  for (const each of seen) shown.delete(whose(each));
  if (!shown.size) return null;
  return (
    <div className={styles.away} role="status">
      <TriangleAlert aria-hidden />
      <p>{[...shown.values()].join(" ")}</p>
    </div>
  );
}

function LaneCard({ lane, onOpen }: { lane: Lane; onOpen: NowProps["onOpen"] }) {
  const { job } = lane;
  const gpu = lane.gpu ?? lane.name;
  const about = [
    gpu,
    lane.memory_used !== null && lane.memory_total ? texts.memory(size(lane.memory_used), size(lane.memory_total)) : "",
    lane.load !== null ? texts.load(Math.round(lane.load * 100)) : "",
    lane.on_card !== null && lane.on_card > 1 ? texts.onCard(lane.on_card) : "",
  ]
    .filter(Boolean)
    .map(isolated);
  if (!job) {
    return (
      <article className={styles.lane} data-idle aria-label={texts.lane(gpu)}>
        <span className={styles.laneIcon} data-away={lane.away ? true : undefined}>
          {lane.away ? <TriangleAlert aria-hidden /> : <Cpu aria-hidden />}
        </span>
        <div className={styles.laneText}>
          <strong>{lane.away ? texts.away : texts.idle}</strong>
          {lane.away && <p className={styles.awayText}>{lane.away}</p>}
          <p className={styles.gpu} title={lane.packing ?? undefined}>
            {about.join(" · ")}
          </p>
        </div>
      </article>
    );
  }
  const name = nameOf(job);
  const how = [
    isolated(job.node_title ?? job.node ?? ""),
    job.steps ? texts.step(job.step ?? 0, job.steps) : null,
    job.expected_seconds === null
      ? null
      : job.expected_seconds < 1
        ? texts.almost
        : texts.left(duration(job.expected_seconds)),
  ].filter(Boolean);
  return (
    <article className={styles.lane} aria-label={texts.lane(gpu)}>
      <Link
        to="/jobs/$id"
        params={{ id: job.id }}
        className={styles.lanePicture}
        tabIndex={-1}
        aria-hidden
        onClick={(event) => {
          event.preventDefault();
          onOpen(job);
        }}
      >
        <LivePreview id={job.id} name={texts.livePreview(name)}>
          <InputPoster id={job.id} />
        </LivePreview>
      </Link>
      <div className={styles.laneText}>
        <button type="button" className={styles.laneName} onClick={() => onOpen(job)}>
          {name}
        </button>
        <p className={styles.how}>{how.join(" · ") || texts.starting}</p>
        <p className={styles.gpu} title={lane.packing ?? undefined}>
          {about.join(" · ")}
        </p>
        <Progress value={job.progress ?? 0} name={texts.progress(name)} />
      </div>
    </article>
  );
}

/** What it is made from, until there is something to see of it. */
function InputPoster({ id }: { id: string }) {
  const { data } = useQuery(jobQuery(id));
  const url = data?.input?.poster_url;
  const nothing = <span className={styles.laneNothing} />;
  if (!url) return nothing;
  return (
    <Poster url={url} className={styles.laneInput}>
      {nothing}
    </Poster>
  );
}
