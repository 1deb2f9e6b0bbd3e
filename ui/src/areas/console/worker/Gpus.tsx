import { Progress } from "@/kit";
import { size } from "@/texts/common";
import { console as shared } from "@/texts/console";
import { workers as many, worker as texts } from "@/texts/console-workers";
import type { Gpu } from "../queries/workers";
import { Panel } from "../shared/panels";
import styles from "./worker.module.css";

export function Gpus({ gpus }: { gpus: readonly Gpu[] }) {
  return (
    <Panel title={texts.gpus}>
      {gpus.length === 0 && <p className={styles.quiet}>{texts.noGpu}</p>}
      {gpus.map((gpu, index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: GPUs may have the same name
        <GpuNow key={index} gpu={gpu} />
      ))}
    </Panel>
  );
}

function GpuNow({ gpu }: { gpu: Gpu }) {
  const values = [
    gpu.memory_total ? many.memory(size(gpu.memory_used ?? 0), size(gpu.memory_total)) : "",
    typeof gpu.load === "number" ? many.load(gpu.load) : "",
  ].filter(Boolean);
  return (
    <div className={styles.slot}>
      <h3>{gpu.name ?? gpu.server ?? shared.unknown}</h3>
      <span className={styles.figures}>{values.join(" · ")}</span>
      {gpu.memory_total ? (
        <div className={styles.meter}>
          <Progress value={(gpu.memory_used ?? 0) / gpu.memory_total} name={many.memoryName} />
        </div>
      ) : null}
      {(gpu.unavailable_reason || gpu.packing) && (
        <p className={styles.quiet}>{gpu.unavailable_reason ?? gpu.packing}</p>
      )}
    </div>
  );
}
