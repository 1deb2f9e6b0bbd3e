import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { CircleCheck } from "lucide-react";
import { useState } from "react";
import { sentence } from "@/api/problem";
import { Button, Dialog, EmptyState, ErrorCard, Field, Select, Skeleton, StatusDot } from "@/kit";
import { Segmented } from "@/kit/Segmented";
import { console as shared } from "@/texts/console";
import { shells } from "@/texts/console-shared";
import { addWorker as texts } from "@/texts/console-workers";
import { type Fleet, fleets as fleetsQuery, joinInstructions } from "../queries/fleets";
import { type AuditEntry, registered, worker as workerQuery } from "../queries/workers";
import { Copyable } from "../shared/panels";
import { listNames, workerName, workflowName } from "./rules";
import { commandFor, installFor, isOnlyHere, SHELL, SHELLS } from "./shells";
import styles from "./workers.module.css";

interface AddWorkerProps {
  isOpen: boolean;
  onClose: () => void;
  /** Preselected: `home` or `production/home`. */
  fleet?: string | undefined;
}

export function AddWorker({ isOpen, onClose, fleet }: AddWorkerProps) {
  return (
    <Dialog
      isOpen={isOpen}
      onClose={onClose}
      isWide
      title={texts.title}
      about={texts.about}
      actions={
        <Button look="primary" onClick={onClose}>
          {texts.done}
        </Button>
      }
    >
      {isOpen && <Steps fleet={fleet} onClose={onClose} />}
    </Dialog>
  );
}

const idOf = (fleet: Fleet): string => `${fleet.stage}/${fleet.slug}`;

function Steps({ fleet: asked, onClose }: { fleet: string | undefined; onClose: () => void }) {
  const { data: fleets } = useQuery(fleetsQuery);
  const [chosen, choose] = useState<string | null>(null);
  if (!fleets) return <Skeleton height={240} />;
  const fleet =
    fleets.find((each) => idOf(each) === chosen) ??
    fleets.find((each) => idOf(each) === asked || each.slug === asked) ??
    fleets[0];
  if (!fleet) {
    return (
      <EmptyState icon={CircleCheck} title={texts.noFleet} text={texts.noFleetAdvice}>
        <Link to="/console/fleets">{texts.toFleets}</Link>
      </EmptyState>
    );
  }
  return (
    <div className={styles.steps}>
      <Field name={texts.fleet} hint={texts.fleetHint(fleet.workflow_slugs.length)}>
        <Select
          value={idOf(fleet)}
          choices={fleets.map((each) => ({
            value: idOf(each),
            name: `${each.name || each.slug} · ${shared.stages[each.stage] ?? each.stage}`,
          }))}
          onChange={choose}
        />
      </Field>
      <Commands key={idOf(fleet)} fleet={fleet} onClose={onClose} />
    </div>
  );
}

function Commands({ fleet, onClose }: { fleet: Fleet; onClose: () => void }) {
  const { data, error } = useQuery(joinInstructions(fleet.stage, fleet.slug));
  const { data: found } = useQuery(registered);
  const [shell, choose] = useState<string>(SHELL);
  // only registrations after the command was shown count
  const [last, setLast] = useState<number | null>(null);
  if (found && last === null) setLast(found[0]?.id ?? 0);
  const arrived = last === null ? [] : (found ?? []).filter((each) => each.id > last && isOf(each, fleet));
  const ids = [...new Set(arrived.map((each) => each.worker_id))];
  return (
    <>
      {error && <ErrorCard title={sentence(error)} />}
      <div className={styles.step}>
        <h3>{texts.install}</h3>
        {data ? <Copyable name={texts.install} text={installFor(shell, data)} /> : !error && <Skeleton height={40} />}
        <p className={styles.hint}>{texts.installHint}</p>
      </div>
      <div className={styles.step}>
        <h3>{texts.start}</h3>
        <Segmented name={shells.name} value={shell} choices={SHELLS} onChange={choose} />
        {data ? (
          <Copyable name={texts.start} text={commandFor(shell, data)} secret={data.variables.FLEET_SECRET} />
        ) : (
          !error && <Skeleton height={64} />
        )}
        <p className={styles.hint}>
          {texts.comfyui} {texts.secret}
        </p>
        {data && isOnlyHere(data) && <p className={styles.hint}>{shells.onlyHere}</p>}
      </div>
      <div role="status" className={styles.arrived}>
        {ids.map((each) => (
          <Arrival key={each} id={each} onClose={onClose} />
        ))}
        {ids.length === 0 && (
          <div className={styles.arrival}>
            <div>
              <StatusDot status="waiting" />
              {texts.waiting}
            </div>
          </div>
        )}
      </div>
    </>
  );
}

function isOf({ data }: AuditEntry, fleet: Fleet): boolean {
  const place = data as { fleet?: unknown; stage?: unknown } | null;
  return place?.fleet === fleet.slug && place.stage === fleet.stage;
}

function Arrival({ id, onClose }: { id: string; onClose: () => void }) {
  const { data } = useQuery(workerQuery(id));
  return (
    <div className={styles.arrival}>
      <div>
        <CircleCheck aria-hidden />
        <strong>{texts.here(data ? workerName(data) : id)}</strong>
        <Link to="/console/workers/$id" params={{ id }} onClick={onClose}>
          {texts.open}
        </Link>
      </div>
      {!data && <p>{texts.checking}</p>}
      {data?.missing_requirements.length === 0 && <p>{texts.complete}</p>}
      {data?.missing_requirements.map((each) => (
        <p key={each.workflow_hash}>
          {texts.missing(workflowName(each), listNames([...each.node_types, ...each.models]))}
        </p>
      ))}
    </div>
  );
}
