import { Link } from "@tanstack/react-router";
import { Progress } from "@/kit";
import { size } from "@/texts/common";
import { console as shared } from "@/texts/console";
import { workers as texts } from "@/texts/console-workers";
import type { Worker } from "../queries/workers";
import { TimeAgo, useNow } from "../shared/panels";
import type { Column } from "../shared/VirtualTable";
import { percentOf, progressPart, runningFirst, workerName, workerNote } from "./rules";
import { WorkerStateBadge } from "./WorkerStateBadge";
import styles from "./workers.module.css";

export const columns = texts.columns;

export const COLUMNS: readonly Column<Worker>[] = [
  {
    id: "name",
    name: columns.name,
    width: "minmax(150px, 1.4fr)",
    isSortable: true,
    show: (worker) => <Name worker={worker} />,
  },
  {
    id: "state",
    name: columns.state,
    width: "104px",
    isSortable: true,
    show: (worker) => <WorkerStateBadge state={worker.state} />,
  },
  {
    id: "fleet",
    name: columns.fleet,
    width: "minmax(90px, 0.8fr)",
    from: "medium",
    isSortable: true,
    show: (worker) => (
      <span className={styles.two}>
        <span>{worker.fleet_slug}</span>
        <span className={styles.sub}>
          {[shared.stages[worker.stage] ?? worker.stage, worker.capacity_type === "spot" ? texts.spot : ""]
            .filter(Boolean)
            .join(" · ")}
        </span>
      </span>
    ),
  },
  {
    id: "gpu",
    name: columns.gpu,
    width: "minmax(120px, 1fr)",
    from: "wide",
    isSortable: true,
    show: (worker) => <GpuOf worker={worker} />,
  },
  {
    id: "now",
    name: columns.now,
    width: "minmax(140px, 1.6fr)",
    from: "medium",
    show: (worker) => <Now worker={worker} />,
  },
  {
    id: "version",
    name: columns.version,
    width: "90px",
    from: "wide",
    isSortable: true,
    show: (worker) => <span className={styles.quiet}>{worker.version ?? shared.unknown}</span>,
  },
  {
    id: "seen",
    name: columns.seen,
    width: "84px",
    isRightAligned: true,
    isSortable: true,
    show: (worker) => <TimeAgo at={worker.last_seen_at} />,
  },
];

function Name({ worker }: { worker: Worker }) {
  const name = workerName(worker);
  return (
    <span className={styles.name}>
      <Link to="/console/workers/$id" params={{ id: worker.worker_id }} title={worker.worker_id}>
        {name}
      </Link>
      <span className={styles.sub}>
        {[name === worker.worker_id ? "" : worker.worker_id, worker.instance_type].filter(Boolean).join(" · ")}
      </span>
      <span className={styles.narrow}>
        <Brief worker={worker} />
      </span>
    </span>
  );
}

/** One line for narrow screens. */
function Brief({ worker }: { worker: Worker }) {
  const now = useNow();
  const [job] = runningFirst(worker.jobs);
  const { text } = workerNote(worker, now);
  return text || [worker.gpus[0]?.name, job?.workflow_slug, job && percentOf(job)].filter(Boolean).join(" · ");
}

function GpuOf({ worker: { gpus } }: { worker: Worker }) {
  const [first] = gpus;
  if (!first?.name) return <span className={styles.quiet}>{shared.unknown}</span>;
  const more = gpus.length - 1;
  return (
    <span className={styles.two}>
      <span title={first.name}>
        {first.name}
        {more > 0 && ` ${texts.more(more)}`}
      </span>
      {first.memory_total ? (
        <span className={styles.sub}>{texts.memory(size(first.memory_used ?? 0), size(first.memory_total))}</span>
      ) : null}
    </span>
  );
}

function Now({ worker }: { worker: Worker }) {
  const now = useNow();
  const [job, ...more] = runningFirst(worker.jobs);
  const { text, tone } = workerNote(worker, now);
  if (!job || tone === "bad") {
    return (
      <span className={styles.at} data-tone={tone} title={text}>
        {text}
      </span>
    );
  }
  const part = progressPart(job);
  return (
    <span className={styles.job}>
      <span>
        {job.workflow_slug} {more.length > 0 && texts.more(more.length)}{" "}
        {text && (
          <span className={styles.at} data-tone={tone}>
            {text}
          </span>
        )}
      </span>
      <span className={styles.percent}>{percentOf(job) ?? texts.starting}</span>
      <Progress value={part} name={texts.progress(job.workflow_slug)} />
    </span>
  );
}
