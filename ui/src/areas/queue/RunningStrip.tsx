import type { Slot } from "@/api/types";
import { Progress } from "@/kit";
import { queue as texts } from "@/texts/queue";
import styles from "./RunningStrip.module.css";
import { type SlotJob, slotJobName } from "./use-slots";

interface RunningStripProps {
  slots: readonly Slot[];
  onOpen: (job: SlotJob) => void;
}

/** All running jobs in one line, shown while the list is filtered. */
export function RunningStrip({ slots, onOpen }: RunningStripProps) {
  const running = slots.flatMap(({ job }) => (job ? [job] : []));
  if (!running.length) return null;
  return (
    <section className={styles.strip} aria-label={texts.now}>
      {running.map((job) => {
        const name = slotJobName(job);
        return (
          <button key={job.id} type="button" onClick={() => onOpen(job)}>
            <span>{name}</span>
            <span className={styles.bar}>
              <Progress value={job.progress} name={texts.progress(name)} />
            </span>
          </button>
        );
      })}
    </section>
  );
}
