import { Pause, Play } from "lucide-react";
import { useQueuePause } from "@/jobs/use-queue-pause";
import { Button } from "@/kit";
import { common } from "@/texts/common";
import styles from "./Notice.module.css";

/** Shows on every page that the queue is paused and how many jobs it holds. */
export function PauseNotice() {
  const { isPaused, held, resume } = useQueuePause();
  return (
    <div role="status" aria-label={common.pause.name} className={styles.notice}>
      {isPaused && (
        <p>
          <Pause aria-hidden />
          <span>{common.pause.holds(held)}</span>
          <Button icon={Play} size="small" className={styles.action ?? ""} onClick={resume}>
            {common.pause.resume}
          </Button>
        </p>
      )}
    </div>
  );
}
