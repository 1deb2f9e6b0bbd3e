import { Link } from "@tanstack/react-router";
import { console as shared } from "@/texts/console";
import { workers as many, worker as texts } from "@/texts/console-workers";
import type { WorkerDetails } from "../queries/workers";
import { Panel } from "../shared/panels";
import { workflowName } from "../workers/rules";
import styles from "./worker.module.css";

const MAX_NAMES = 24;

export function WorkerWorkflows({ worker: { workflow_slugs: slugs, loaded } }: { worker: WorkerDetails }) {
  return (
    <>
      <Panel title={texts.loaded}>
        {loaded.length === 0 && <p className={styles.quiet}>{shared.none}</p>}
        <Names slugs={loaded.map(workflowName)} />
      </Panel>
      <Panel title={texts.workflows}>
        {slugs.length === 0 && <p className={styles.quiet}>{texts.noWorkflows}</p>}
        <Names slugs={slugs} />
      </Panel>
    </>
  );
}

function Names({ slugs }: { slugs: readonly string[] }) {
  return (
    <div className={styles.names}>
      {slugs.slice(0, MAX_NAMES).map((slug) => (
        <Link key={slug} to="/console/workflows/$slug" params={{ slug }}>
          {slug}
        </Link>
      ))}
      {slugs.length > MAX_NAMES && <span className={styles.quiet}>{many.more(slugs.length - MAX_NAMES)}</span>}
    </div>
  );
}
