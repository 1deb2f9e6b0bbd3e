import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { CircleAlert, CircleCheck, Copy, Info } from "lucide-react";
import { type FormEvent, useEffect, useState } from "react";
import { here } from "@/api/client";
import { sentence } from "@/api/problem";
import { commandFor, isOnlyHere, SHELL, SHELLS } from "@/areas/console/workers/shells";
import {
  Button,
  buttonClass,
  ErrorCard,
  Field,
  IconButton,
  NumberField,
  Progress,
  Skeleton,
  StatusDot,
  TextField,
} from "@/kit";
import { CompareSlider } from "@/kit/CompareSlider";
import { copyText } from "@/kit/clipboard";
import { Segmented } from "@/kit/Segmented";
import { common } from "@/texts/common";
import { shells } from "@/texts/console-shared";
import { setup as texts } from "@/texts/setup";
import {
  checkStorage,
  firstJob,
  isGood,
  isOver,
  joining,
  makeEffect,
  makeFleet,
  runFirstJob,
  samplePicture,
  type Tried,
} from "./data";
import styles from "./setup.module.css";

interface Done {
  onDone: () => void;
}

export type Stage = "production" | "staging";

export function Storage({ onDone }: Done) {
  const check = useMutation({ mutationFn: checkStorage });
  const { mutate, data, isPending, error } = check;
  useEffect(() => mutate(), [mutate]);
  return (
    <>
      <p>{texts.storage.about}</p>
      {error && <ErrorCard title={sentence(error)} />}
      {!data && !error && <Skeleton height={160} />}
      {data && (
        <>
          <p className={styles.place}>
            <span>{texts.storage.place}</span>
            <code>{data.url}</code>
          </p>
          <ul className={styles.tried}>
            {data.tried.map((each) => (
              <TriedLine key={each.part} tried={each} isOptional={each.part === "browsers" && isGood(data.tried)} />
            ))}
          </ul>
          {isGood(data.tried) && <p role="status">{texts.storage.isGood}</p>}
        </>
      )}
      <div className={styles.actions}>
        <Button isBusy={isPending} onClick={() => mutate()}>
          {texts.storage.again}
        </Button>
        <Button look="primary" disabled={!data || !isGood(data.tried)} onClick={onDone}>
          {texts.next}
        </Button>
      </div>
    </>
  );
}

function TriedLine({ tried, isOptional }: { tried: Tried; isOptional: boolean }) {
  const tone = tried.problem === null ? "good" : isOptional ? "info" : "bad";
  const Icon = { good: CircleCheck, info: Info, bad: CircleAlert }[tone];
  return (
    <li data-tone={tone}>
      <Icon aria-hidden />
      <div>
        {texts.storage.parts[tried.part] ?? tried.part}
        {tried.problem !== null && <p>{isOptional ? texts.storage.optional : tried.problem}</p>}
      </div>
    </li>
  );
}

const SLUG = /^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$/;

export function FirstFleet({ stage, known, onDone }: Done & { stage: Stage; known: string | undefined }) {
  const client = useQueryClient();
  const [slug, setSlug] = useState(known ?? "home");
  const make = useMutation({
    mutationFn: () => makeFleet(slug, stage),
    onSuccess: async () => {
      await client.invalidateQueries({ queryKey: ["setup", "fleets"] });
      onDone();
    },
  });
  const send = (event: FormEvent) => {
    event.preventDefault();
    if (known === slug) onDone();
    else if (SLUG.test(slug)) make.mutate();
  };
  return (
    <form className={styles.form} onSubmit={send}>
      <p>{texts.fleet.about}</p>
      {make.error && <ErrorCard title={sentence(make.error)} />}
      <Field
        name={texts.fleet.name}
        hint={texts.fleet.nameHint}
        problem={SLUG.test(slug) ? null : texts.fleet.wrongName}
      >
        <TextField value={slug} autoFocus spellCheck={false} onChange={(event) => setSlug(event.target.value)} />
      </Field>
      <p className={styles.hint}>{texts.fleet.begins}</p>
      <div className={styles.actions}>
        <Button look="primary" type="submit" isBusy={make.isPending}>
          {known === slug ? texts.next : texts.fleet.action}
        </Button>
      </div>
    </form>
  );
}

interface FirstWorkerProps extends Done {
  fleet: { slug: string; stage: string };
  workers: readonly { worker_id: string; display_name: string | null; version?: string | null | undefined }[];
}

export function FirstWorker({ fleet, workers, onDone }: FirstWorkerProps) {
  const { data, error } = useQuery(joining(fleet.stage as Stage, fleet.slug));
  const [shell, choose] = useState<string>(SHELL);
  return (
    <>
      <p>{texts.worker.about(fleet.slug)}</p>
      {error && <ErrorCard title={sentence(error)} />}
      <p className={styles.hint}>{texts.worker.install}</p>
      {data ? <Command text={data.install} /> : <Skeleton height={40} />}
      <p className={styles.hint}>{texts.worker.start}</p>
      <Segmented name={shells.name} value={shell} choices={SHELLS} onChange={choose} />
      {data ? <Command text={commandFor(shell, data)} /> : <Skeleton height={64} />}
      <p className={styles.hint}>{texts.worker.secret}</p>
      {data && isOnlyHere(data) && <p className={styles.hint}>{shells.onlyHere}</p>}
      <div role="status" className={styles.arrived}>
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
      <div className={styles.actions}>
        <Button look="primary" disabled={workers.length === 0} onClick={onDone}>
          {texts.next}
        </Button>
      </div>
    </>
  );
}

function Command({ text }: { text: string }) {
  return (
    <div className={styles.command}>
      <code>{text}</code>
      <IconButton icon={Copy} name={common.copy} size="small" onClick={() => void copyText(text)} />
    </div>
  );
}

export function FirstEffect({ tenantId, known, onDone }: Done & { tenantId: string; known: string | undefined }) {
  const client = useQueryClient();
  const [name, setName] = useState(known ?? texts.effect.named);
  const [price, setPrice] = useState<number>(5);
  const make = useMutation({
    mutationFn: () => makeEffect(name.trim(), price, tenantId),
    onSuccess: async () => {
      await client.invalidateQueries({ queryKey: ["setup", "effects"] });
      onDone();
    },
  });
  return (
    <form
      className={styles.form}
      onSubmit={(event) => {
        event.preventDefault();
        if (known) onDone();
        else make.mutate();
      }}
    >
      <p>{texts.effect.about}</p>
      {make.error && <ErrorCard title={sentence(make.error)} />}
      <Field name={texts.effect.name}>
        <TextField required maxLength={200} value={name} onChange={(event) => setName(event.target.value)} />
      </Field>
      <Field name={texts.effect.price} hint={texts.effect.priceHint}>
        <NumberField isWhole minimum={0} value={price} onChange={(value) => setPrice(Number(value ?? 0))} />
      </Field>
      <div className={styles.actions}>
        <Button look="primary" type="submit" isBusy={make.isPending} disabled={!name.trim()}>
          {known ? texts.next : texts.effect.action}
        </Button>
      </div>
    </form>
  );
}

/** `known` is what was run before, if anything was. */
export function FirstJob({ effectId, known }: { effectId: number; known: string | undefined }) {
  const [picture, setPicture] = useState<{ file: File; url: string } | null>(null);
  useEffect(() => {
    let url = "";
    void samplePicture().then((file) => {
      url = URL.createObjectURL(file);
      setPicture({ file, url });
    });
    return () => URL.revokeObjectURL(url);
  }, []);
  const run = useMutation({ mutationFn: (file: File) => runFirstJob(effectId, file) });
  const id = run.data ?? (run.isPending ? undefined : known);
  const { data: job } = useQuery({ ...firstJob(id ?? ""), enabled: id !== undefined });
  const output = job?.status === "completed" ? job.outputs[0] : undefined;
  const isAtIt = run.isPending || (id !== undefined && !(job && isOver(job.status)));
  const words = texts.job;
  return (
    <>
      {output && picture ? (
        <>
          <h3 className={styles.good}>
            <CircleCheck aria-hidden />
            {words.doneTitle}
          </h3>
          <p>{words.doneText}</p>
          <div className={styles.pictures}>
            <CompareSlider
              before={<img src={picture.url} alt={words.before} />}
              after={<img src={here(output.url)} alt={words.after} />}
              beforeName={words.before}
              afterName={words.after}
            />
          </div>
        </>
      ) : (
        <>
          <p>{words.about}</p>
          {picture && <img className={styles.picture} src={picture.url} alt={words.before} />}
        </>
      )}
      {run.error && <ErrorCard title={sentence(run.error)} />}
      {job && isOver(job.status) && !output && (
        <ErrorCard title={words.failed} details={null}>
          {job.error}
        </ErrorCard>
      )}
      {isAtIt && (
        <div role="status" className={styles.going}>
          <Progress value={null} name={words.running} />
          <span>{run.isPending ? words.sending : job?.status === "processing" ? words.running : words.waiting}</span>
          {job?.waiting?.text && <p className={styles.hint}>{job.waiting.text}</p>}
        </div>
      )}
      <div className={styles.actions}>
        {output ? (
          <>
            <Link to="/studio" className={buttonClass({})}>
              {words.toStudio}
            </Link>
            <Link to="/console" className={buttonClass({ look: "primary" })}>
              {words.toConsole}
            </Link>
          </>
        ) : (
          <Button
            look="primary"
            isBusy={isAtIt}
            disabled={!picture}
            onClick={() => picture && run.mutate(picture.file)}
          >
            {id ? words.again : words.action}
          </Button>
        )}
      </div>
    </>
  );
}
