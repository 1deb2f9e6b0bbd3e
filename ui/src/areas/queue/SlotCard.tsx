import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Cpu, TriangleAlert } from "lucide-react";
import { job as jobQuery } from "@/api/queries";
import type { Slot } from "@/api/types";
import { LivePreview } from "@/jobs/LivePreview";
import { leftText } from "@/jobs/progress";
import { Progress } from "@/kit";
import { Poster } from "@/kit/Poster";
import { useSession } from "@/session/session";
import { isolated, size } from "@/texts/common";
import { queue as texts } from "@/texts/queue";
import styles from "./SlotCard.module.css";
import { type SlotJob, slotJobName } from "./use-slots";

interface SlotCardProps {
  slot: Slot;
  onOpen: (job: SlotJob) => void;
}

export function SlotCard({ slot, onOpen }: SlotCardProps) {
  return slot.job ? <BusySlot slot={slot} job={slot.job} onOpen={onOpen} /> : <IdleSlot slot={slot} />;
}

const gpuName = (slot: Slot): string => slot.gpu ?? slot.name;

function Gpu({ slot }: { slot: Slot }) {
  const parts = [
    gpuName(slot),
    slot.memory_used !== null && slot.memory_total ? texts.memory(size(slot.memory_used), size(slot.memory_total)) : "",
    slot.load !== null ? texts.load(Math.round(slot.load * 100)) : "",
    slot.on_gpu !== null && slot.on_gpu > 1 ? texts.onGpu(slot.on_gpu) : "",
  ];
  return (
    <p className={styles.gpu} title={slot.packing ?? undefined}>
      {parts.filter(Boolean).map(isolated).join(" · ")}
    </p>
  );
}

function IdleSlot({ slot }: { slot: Slot }) {
  const { desk } = useSession();
  return (
    <article className={styles.slot} data-idle aria-label={texts.slot(gpuName(slot))}>
      <span className={styles.icon} data-problem={slot.unavailable_reason ? true : undefined}>
        {slot.unavailable_reason ? <TriangleAlert aria-hidden /> : <Cpu aria-hidden />}
      </span>
      <div className={styles.text}>
        <strong>{slot.unavailable_reason ? texts.unreachable : texts.idle}</strong>
        {/* on a desk, the notice at the top of every page says why */}
        {slot.unavailable_reason && !desk && <p className={styles.problem}>{slot.unavailable_reason}</p>}
        <Gpu slot={slot} />
      </div>
    </article>
  );
}

function BusySlot({ slot, job, onOpen }: SlotCardProps & { job: SlotJob }) {
  const name = slotJobName(job);
  return (
    <article className={styles.slot} aria-label={texts.slot(gpuName(slot))}>
      <Link
        to="/jobs/$id"
        params={{ id: job.id }}
        className={styles.picture}
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
      <div className={styles.text}>
        <button type="button" className={styles.name} onClick={() => onOpen(job)}>
          {name}
        </button>
        <p className={styles.step}>{stepText(job)}</p>
        <Gpu slot={slot} />
        <Progress value={job.progress ?? 0} name={texts.progress(name)} />
      </div>
    </article>
  );
}

function stepText({ node_title, node, step, steps, progress, is_estimated, expected_seconds: left }: SlotJob): string {
  const parts = [
    isolated(node_title ?? node ?? ""),
    steps ? texts.step(step ?? 0, steps) : "",
    is_estimated && progress !== null ? texts.estimated(progress) : "",
    left === null ? "" : leftText(left, steps ? (step ?? 0) / steps : null),
  ];
  return parts.filter(Boolean).join(" · ") || texts.starting;
}

/** The input of the job, shown until there is a live preview. */
function InputPoster({ id }: { id: string }) {
  const { data } = useQuery(jobQuery(id));
  const url = data?.input?.poster_url;
  const placeholder = <span className={styles.placeholder} />;
  if (!url) return placeholder;
  return (
    <Poster url={url} className={styles.input}>
      {placeholder}
    </Poster>
  );
}
