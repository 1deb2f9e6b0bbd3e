import type { Slot } from "@/api/types";
import { Heading } from "@/kit";
import { queue as texts } from "@/texts/queue";
import styles from "./RunningNow.module.css";
import { SlotCard } from "./SlotCard";
import type { SlotJob } from "./use-slots";

interface RunningNowProps {
  slots: readonly Slot[];
  onOpen: (job: SlotJob) => void;
}

/** A card for each slot, with the live preview of its job. */
export function RunningNow({ slots, onOpen }: RunningNowProps) {
  return (
    <section className={styles.now}>
      <Heading>{texts.now}</Heading>
      <div className={styles.slots}>
        {slots.map((slot, index) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: a slot is identified by its position
          <SlotCard key={`${slot.worker_id} ${index}`} slot={slot} onOpen={onOpen} />
        ))}
      </div>
    </section>
  );
}
