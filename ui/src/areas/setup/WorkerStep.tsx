import { useQuery } from "@tanstack/react-query";
import { CircleCheck } from "lucide-react";
import { useState } from "react";
import { sentence } from "@/api/problem";
import { Copyable } from "@/areas/console/shared/panels";
import { commandFor, installFor, isOnlyHere, SHELL, SHELLS } from "@/areas/console/workers/shells";
import { Button, ErrorCard, Skeleton, StatusDot } from "@/kit";
import { Segmented } from "@/kit/Segmented";
import { shells } from "@/texts/console-shared";
import { setup as texts } from "@/texts/setup";
import type { Stage } from "./create";
import { joinCommand } from "./queries";
import step from "./step.module.css";
import styles from "./WorkerStep.module.css";

interface WorkerStepProps {
  fleet: { slug: string; stage: string };
  workers: readonly { worker_id: string; display_name: string | null; version?: string | null | undefined }[];
  onDone: () => void;
}

export function WorkerStep({ fleet, workers, onDone }: WorkerStepProps) {
  const { data, error } = useQuery(joinCommand(fleet.stage as Stage, fleet.slug));
  const [shell, choose] = useState<string>(SHELL);
  return (
    <>
      <p>{texts.worker.about(fleet.slug)}</p>
      {error && <ErrorCard title={sentence(error)} />}
      <p className={step.hint}>{texts.worker.install}</p>
      {data ? <Copyable name={texts.worker.install} text={installFor(shell, data)} /> : <Skeleton height={40} />}
      <p className={step.hint}>{texts.worker.start}</p>
      <Segmented name={shells.name} value={shell} choices={SHELLS} onChange={choose} />
      {data ? (
        <Copyable name={texts.worker.start} text={commandFor(shell, data)} secret={data.variables.FLEET_SECRET} />
      ) : (
        <Skeleton height={64} />
      )}
      <p className={step.hint}>{texts.worker.secret}</p>
      {data && isOnlyHere(data) && <p className={step.hint}>{shells.onlyHere}</p>}
      <div role="status" className={styles.workers}>
        {workers.length === 0 ? (
          <>
            <StatusDot status="waiting" />
            {texts.worker.waiting}
          </>
        ) : (
          workers.map((each) => (
            <p key={each.worker_id}>
              <CircleCheck aria-hidden />
              <strong>{texts.worker.here(each.display_name || each.worker_id)}</strong>
              {each.version && <span>{texts.worker.version(each.version)}</span>}
            </p>
          ))
        )}
      </div>
      <div className={step.actions}>
        <Button look="primary" disabled={workers.length === 0} onClick={onDone}>
          {texts.next}
        </Button>
      </div>
    </>
  );
}
