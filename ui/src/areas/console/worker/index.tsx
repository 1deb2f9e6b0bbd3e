import { useQuery } from "@tanstack/react-query";
import { useParams } from "@tanstack/react-router";
import { CircleCheck, TriangleAlert } from "lucide-react";
import { Problem } from "@/api/problem";
import { Header } from "@/kit/Header";
import { console as shared } from "@/texts/console";
import { worker as texts } from "@/texts/console-workers";
import { type WorkerDetails, worker as workerQuery } from "../queries/workers";
import { BackLink, LoadingOrError, Panel, useNow } from "../shared/panels";
import { workerBlocks, workerName } from "../workers/rules";
import { WorkerStateBadge } from "../workers/WorkerStateBadge";
import { Audit } from "./Audit";
import { CurrentJobs } from "./CurrentJobs";
import { Gpus } from "./Gpus";
import { Logs } from "./Logs";
import { WorkerActions } from "./WorkerActions";
import { WorkerFacts } from "./WorkerFacts";
import { WorkerWorkflows } from "./WorkerWorkflows";
import styles from "./worker.module.css";

export default function WorkerPage() {
  const { id } = useParams({ from: "/console/workers/$id" });
  const { data: worker, error } = useQuery(workerQuery(id));
  return (
    <div className={styles.page}>
      <Header title={worker ? workerName(worker) : id} actions={worker && <WorkerActions worker={worker} />}>
        {worker && <WorkerStateBadge state={worker.state} />}
      </Header>
      <BackLink to="/console/workers" page={shared.pages.workers} />
      <div className={styles.columns}>
        {worker ? (
          <>
            <div className={styles.column}>
              <Blocks worker={worker} />
              <CurrentJobs worker={worker} />
              <Gpus gpus={worker.gpus} />
              <Logs id={id} />
              <Audit id={id} />
            </div>
            <div className={styles.column}>
              <WorkerFacts worker={worker} />
              <WorkerWorkflows worker={worker} />
            </div>
          </>
        ) : (
          <div className={styles.column}>
            <LoadingOrError error={error} gone={texts.gone} />
            {/* the history links to workers that are no longer registered; their audit log is kept */}
            {error instanceof Problem && error.status === 404 && <Audit id={id} />}
          </div>
        )}
      </div>
    </div>
  );
}

function Blocks({ worker }: { worker: WorkerDetails }) {
  const now = useNow();
  const found = workerBlocks(worker, now);
  return (
    <Panel title={texts.blocks.title}>
      <ul className={styles.blocks}>
        {found.map(({ tone, text }) => (
          <li key={text} data-tone={tone}>
            <TriangleAlert aria-hidden />
            {text}
          </li>
        ))}
        {found.length === 0 && (
          <li data-tone="good">
            <CircleCheck aria-hidden />
            {texts.blocks.nothing}
          </li>
        )}
      </ul>
    </Panel>
  );
}
