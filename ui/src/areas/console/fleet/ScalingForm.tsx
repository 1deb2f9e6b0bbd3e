import { useMutation, useQueryClient } from "@tanstack/react-query";
import { CalendarPlus, Trash2 } from "lucide-react";
import { type FormEvent, useEffect, useRef, useState } from "react";
import { patch } from "@/api/client";
import { Problem, sentence } from "@/api/problem";
import { Button, ErrorCard, Field, IconButton, NumberField, Select, Switch, TextField, toast } from "@/kit";
import { fleet as words } from "@/texts/console-fleets";
import { isScaled } from "../fleets/rules";
import type { Fleet, Stage } from "../queries/fleets";
import { consoleKeys } from "../shared/live";
import { Panel } from "../shared/panels";
import { useUnsavedChanges } from "../shared/use-unsaved-changes";
import { useVersion } from "../shared/use-version";
import styles from "./fleet.module.css";
import { MachineFields } from "./MachineFields";
import { type MachinesDraft, machineChangesOf, machinesDraftOf, validateMachines } from "./machines-draft";
import { changesOf, type Draft, draftOf, newSchedule, type Schedule, validateDraft, withDay } from "./scaling-draft";

const { scaling: texts } = words;
const DAYS = [0, 1, 2, 3, 4, 5, 6];

type Numbers =
  | "min_machines"
  | "max_machines"
  | "launches_per_minute"
  | "cost_per_hour"
  | "failed_boots"
  | "last_idle_seconds";

export function ScalingForm({ fleet }: { fleet: Fleet }) {
  const client = useQueryClient();
  const before = draftOf(fleet.autoscaling);
  const [draft, setDraft] = useState<Draft>(before);
  const machinesBefore = machinesDraftOf(fleet.machines);
  const [machines, setMachines] = useState<MachinesDraft>(machinesBefore);
  const scaling = changesOf(before, draft);
  const machineChanges = machineChangesOf(machinesBefore, machines);
  const isChanged = scaling !== null || machineChanges !== null;
  const versioned = useVersion(fleet, isChanged);
  const isTouched = useRef(false);
  const written = JSON.stringify([before, machinesBefore]);
  // show changes from elsewhere, unless the user is editing
  useEffect(() => {
    if (isTouched.current) return;
    const [of, ofMachines] = JSON.parse(written) as [Draft, MachinesDraft];
    setDraft(of);
    setMachines(ofMachines);
  }, [written]);
  const save = useMutation({
    mutationFn: () =>
      versioned(
        (version) =>
          patch("/api/admin/fleets/{stage}/{slug}", {
            path: { stage: fleet.stage as Stage, slug: fleet.slug },
            body: { ...(scaling && { autoscaling: scaling }), ...(machineChanges && { machines: machineChanges }) },
            version,
          }),
        () => client.refetchQueries({ queryKey: consoleKeys.fleet(fleet.stage, fleet.slug), exact: true }),
      ),
    onSuccess: async ({ data }) => {
      isTouched.current = false;
      client.setQueryData(consoleKeys.fleet(fleet.stage, fleet.slug), data);
      setDraft(draftOf(data.autoscaling));
      setMachines(machinesDraftOf(data.machines));
      toast({ text: texts.saved, tone: "good" });
      await client.invalidateQueries({ queryKey: consoleKeys.fleet(fleet.stage, fleet.slug) });
    },
  });
  const change = (next: Partial<Draft>) => {
    isTouched.current = true;
    save.reset();
    setDraft((now) => ({ ...now, ...next }));
  };
  const changeMachines = (next: Partial<MachinesDraft>) => {
    change({});
    setMachines((now) => ({ ...now, ...next }));
  };
  const { dialog } = useUnsavedChanges({ isDirty: isChanged, isOfTab: true });
  const problems = validateDraft(draft);
  const machineProblems = validateMachines(machines);
  const isWrong = Object.keys(problems).length > 0 || Object.keys(machineProblems).length > 0;
  const refused = save.error instanceof Problem ? save.error.errors : {};
  const problemOf = (name: string) => problems[name] ?? refused[`autoscaling.${name}`] ?? null;
  const send = (event: FormEvent) => {
    event.preventDefault();
    if (isChanged && !isWrong) save.mutate();
  };
  const numberField = (
    field: Numbers,
    name: string,
    more: { hint?: string; minimum?: number; isWhole?: boolean } = {},
  ) => (
    <Field name={name} hint={more.hint ?? null} problem={problemOf(field)}>
      <NumberField
        isWhole={more.isWhole ?? true}
        minimum={more.minimum ?? 0}
        value={draft[field]}
        onChange={(value) => change({ [field]: value === null ? null : Number(value) })}
      />
    </Field>
  );
  return (
    <form className={styles.column} onSubmit={send}>
      {save.error && <ErrorCard title={sentence(save.error)} />}
      <MachineFields
        draft={machines}
        problemOf={(name) => machineProblems[name] ?? refused[`machines.${name}`] ?? null}
        onChange={changeMachines}
      />
      {!isScaled(fleet) && machines.provider === "static" && <ErrorCard tone="info" title={texts.unset} />}
      <Panel title={texts.policy}>
        <Select
          aria-label={texts.policy}
          value={draft.policy}
          choices={Object.entries(texts.policies).map(([value, name]) => ({ value, name }))}
          onChange={(policy) => change({ policy })}
        />
        <Switch
          name={texts.dryRun}
          hint={texts.dryRunHint}
          isOn={draft.is_dry_run}
          onChange={(is_dry_run) => change({ is_dry_run })}
        />
      </Panel>
      <Panel title={texts.limits}>
        <div className={styles.fields}>
          {numberField("min_machines", texts.min)}
          {numberField("max_machines", texts.max)}
          {numberField("launches_per_minute", texts.launches, { minimum: 1 })}
          {numberField("cost_per_hour", texts.cost, { hint: texts.costHint, isWhole: false })}
          {numberField("failed_boots", texts.boots, { hint: texts.bootsHint, minimum: 1 })}
          {numberField("last_idle_seconds", texts.idle, { hint: texts.idleHint })}
        </div>
      </Panel>
      <Panel
        title={texts.schedules}
        aside={
          <Button
            size="small"
            icon={CalendarPlus}
            onClick={() => change({ schedules: [...draft.schedules, newSchedule()] })}
          >
            {texts.addSchedule}
          </Button>
        }
      >
        <p className={styles.quiet}>
          {texts.schedulesAbout} {draft.schedules.length === 0 && texts.noSchedules}
        </p>
        {draft.schedules.map((each, index) => (
          <ScheduleFields
            // biome-ignore lint/suspicious/noArrayIndexKey: schedules have no names and are identified by position
            key={index}
            index={index}
            schedule={each}
            problemOf={(name) => problemOf(`schedules.${index}.${name}`)}
            onChange={(next) =>
              change({ schedules: draft.schedules.map((other, at) => (at === index ? next : other)) })
            }
            onRemove={() => change({ schedules: draft.schedules.filter((_, at) => at !== index) })}
          />
        ))}
      </Panel>
      <div className={styles.actions}>
        <Button
          disabled={!isChanged}
          onClick={() => {
            isTouched.current = false;
            save.reset();
            setDraft(before);
            setMachines(machinesBefore);
          }}
        >
          {texts.reset}
        </Button>
        <Button look="primary" type="submit" isBusy={save.isPending} disabled={!isChanged || isWrong}>
          {texts.save}
        </Button>
      </div>
      {dialog}
    </form>
  );
}

interface ScheduleFieldsProps {
  index: number;
  schedule: Schedule;
  problemOf: (name: string) => string | null;
  onChange: (schedule: Schedule) => void;
  onRemove: () => void;
}

function ScheduleFields({ index, schedule, problemOf, onChange, onRemove }: ScheduleFieldsProps) {
  const problem = problemOf("days");
  return (
    <fieldset className={styles.schedule} aria-label={texts.schedule(index + 1)}>
      <div className={styles.days} role="group" aria-label={texts.days}>
        {DAYS.map((day) => {
          const isOn = schedule.days.includes(day);
          return (
            <button
              key={day}
              type="button"
              aria-pressed={isOn}
              title={texts.day(day)}
              onClick={() => onChange(withDay(schedule, day, !isOn))}
            >
              {texts.dayShort(day)}
            </button>
          );
        })}
        {problem && <span role="alert">{problem}</span>}
      </div>
      <Field name={texts.begins} problem={problemOf("begins")}>
        <TextField
          value={schedule.begins}
          onChange={(event) => onChange({ ...schedule, begins: event.target.value })}
        />
      </Field>
      <Field name={texts.ends} problem={problemOf("ends")}>
        <TextField value={schedule.ends} onChange={(event) => onChange({ ...schedule, ends: event.target.value })} />
      </Field>
      <Field name={texts.atLeast} problem={problemOf("at_least")}>
        <NumberField
          isWhole
          minimum={0}
          value={schedule.at_least}
          onChange={(value) => onChange({ ...schedule, at_least: Number(value ?? 0) })}
        />
      </Field>
      <Field name={texts.timezone} problem={problemOf("timezone")}>
        <TextField
          value={schedule.timezone}
          onChange={(event) => onChange({ ...schedule, timezone: event.target.value })}
        />
      </Field>
      <IconButton icon={Trash2} name={texts.removeSchedule} onClick={onRemove} />
    </fieldset>
  );
}
