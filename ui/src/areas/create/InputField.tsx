import { Dices, Grid3x3, Lock, LockOpen, RotateCcw } from "lucide-react";
import { lazy, type ReactNode, Suspense, useState } from "react";
import { Field, IconButton, Select, Skeleton, Stepped, Switch, TextArea, TextField } from "@/kit";
import { Segmented } from "@/kit/Segmented";
import { create as texts } from "@/texts/create";
import type { Form } from "./form";
import styles from "./form.module.css";
import { type Input, isMultiline, isSeed, seedOf } from "./inputs";
import { ModelField } from "./ModelField";
import { isModel } from "./models";
import { focusField } from "./use-submit";
import { describeValue, isChanged, randomSeed, stepValue, textOf, validateInput } from "./values";

const Combobox = lazy(async () => ({ default: (await import("@/kit/Combobox")).Combobox }));
// Longer lists get a search field.
const MAX_SELECT_CHOICES = 12;

interface InputFieldProps {
  form: Form;
  input: Input;
  hint?: string | undefined;
  aside?: ReactNode;
  /** Whether several values may be combined with the values of other fields. */
  canSweep?: boolean;
  /** Whether the files of models can be browsed: on a desk. */
  canBrowse?: boolean;
}

export function InputField({ form, input, hint, aside, canSweep = false, canBrowse = false }: InputFieldProps) {
  const { choice, draft } = form;
  const text = textOf(input, choice, draft.texts);
  const change = (next: string) => form.setText(input, next);
  const about = aside ?? <Aside form={form} input={input} canSweep={canSweep} />;
  const swept = canSweep ? form.draft.sweep[input.key] : undefined;
  // validate numbers on blur
  const [isLeft, setLeft] = useState(false);
  const isWrong = isLeft && swept === undefined && input.type === "number" && text.trim() !== "";
  const problem = form.problems[input.key] ?? (isWrong ? validateInput(input, choice, draft.texts) : null);
  const field = (control: ReactNode, name: ReactNode = input.label) => (
    <div data-field={input.key} className={styles.field}>
      <Field
        name={name}
        aside={about}
        hint={swept === undefined ? hint : texts.form.sweepHints[input.type]}
        problem={problem}
        isRequired={input.required}
      >
        {control}
      </Field>
    </div>
  );
  if (swept !== undefined) return field(<SweepValues form={form} input={input} text={swept} />);
  if (input.type === "boolean") {
    return (
      <div data-field={input.key} className={styles.switch}>
        <Switch
          name={input.label}
          isOn={text === "true"}
          onChange={(isOn) => change(String(isOn))}
          {...(hint && { hint })}
        />
        {canSweep && <SweepToggle form={form} input={input} />}
      </div>
    );
  }
  if (canBrowse && isModel(input)) return field(<ModelField form={form} input={input} text={text} />);
  if (input.type === "choice") {
    const choices = input.choices.map((each) => ({ value: String(each) }));
    const given = { value: text, choices, onChange: change };
    return field(
      choices.length > MAX_SELECT_CHOICES ? (
        <Suspense fallback={<Skeleton height={36} />}>
          <Combobox {...given} />
        </Suspense>
      ) : (
        <Select {...given} />
      ),
    );
  }
  const leave = () => setLeft(true);
  if (isSeed(input)) return field(<Seed form={form} input={input} text={text} onLeave={leave} />);
  if (input.type === "number") return field(<NumberText input={input} text={text} onChange={change} onLeave={leave} />);
  if (isMultiline(input)) {
    return field(<TextArea value={text} onChange={(event) => change(event.target.value)} spellCheck />);
  }
  return field(<TextField value={text} onChange={(event) => change(event.target.value)} />);
}

/** Explains the value, or shows the recalled one with a reset button. */
function Aside({ form, input, canSweep }: { form: Form; input: Input; canSweep: boolean }) {
  const { choice, draft } = form;
  if (canSweep && input.key in draft.sweep)
    return (
      <span className={styles.aside} data-other>
        {texts.form.swept}
        <SweepToggle form={form} input={input} />
      </span>
    );
  const was = form.recalledText(input);
  const isOther = was !== null && was !== textOf(input, choice, draft.texts);
  const meaning = isOther ? texts.form.was(was || "—") : describeValue(input, choice, draft.texts);
  const canReset = isOther || (was === null && isChanged(input, choice, draft.texts) && !isMultiline(input));
  return (
    <span className={styles.aside} data-other={isOther || undefined}>
      <span className={styles.asideText} title={meaning}>
        {meaning || "\u200b"}
      </span>
      {canReset && !isSeed(input) && (
        <button
          type="button"
          className={styles.reset}
          aria-label={texts.form.reset(input.label)}
          title={texts.form.reset(input.label)}
          onClick={() => form.reset(input)}
        >
          <RotateCcw aria-hidden />
        </button>
      )}
      {canSweep && <SweepToggle form={form} input={input} />}
    </span>
  );
}

/** Turns one value into several, which are combined with the values of other fields. */
export function SweepToggle({ form, input }: { form: Form; input: Input }) {
  const isOn = input.key in form.draft.sweep;
  const name = isOn ? texts.form.endSweep(input.label) : texts.form.sweep(input.label);
  const start = input.type === "boolean" ? "*" : textOf(input, form.choice, form.draft.texts);
  return (
    <button
      type="button"
      className={styles.reset}
      aria-label={name}
      aria-pressed={isOn}
      title={name}
      onClick={() => {
        form.setSweep(input, isOn ? null : start);
        // the user types into the field of values, which replaces this one
        requestAnimationFrame(() => focusField(input.key));
      }}
    >
      <Grid3x3 aria-hidden />
    </button>
  );
}

function SweepValues({ form, input, text }: { form: Form; input: Input; text: string }) {
  const change = (next: string) => form.setSweep(input, next);
  const placeholder = texts.form.sweepHints[input.type] ?? "";
  if (isMultiline(input)) {
    return <TextArea value={text} placeholder={placeholder} onChange={(event) => change(event.target.value)} />;
  }
  return (
    <TextField
      autoComplete="off"
      spellCheck={false}
      value={text}
      placeholder={placeholder}
      title={placeholder}
      onChange={(event) => change(event.target.value)}
    />
  );
}

interface NumberTextProps {
  input: Input;
  text: string;
  onChange: (text: string) => void;
  onLeave: () => void;
  placeholder?: string;
}

/** A text field: keeps 64-bit numbers exact and incomplete input as typed. */
function NumberText({ input, text, onChange, onLeave, placeholder }: NumberTextProps) {
  const step = (direction: 1 | -1) => onChange(stepValue(input, text, direction));
  const field = (
    <TextField
      inputMode={input.is_whole ? "numeric" : "decimal"}
      autoComplete="off"
      className={styles.number ?? ""}
      value={text}
      placeholder={placeholder}
      onChange={(event) => onChange(event.target.value)}
      onBlur={onLeave}
      onKeyDown={(event) => {
        if (event.key !== "ArrowUp" && event.key !== "ArrowDown") return;
        event.preventDefault();
        step(event.key === "ArrowUp" ? 1 : -1);
      }}
    />
  );
  // stepping a seed makes no sense
  return isSeed(input) ? field : <Stepped onStep={step}>{field}</Stepped>;
}

interface SeedProps {
  form: Form;
  input: Input;
  text: string;
  onLeave: () => void;
}

function Seed({ form, input, text, onLeave }: SeedProps) {
  const isKept = text.trim() !== "";
  const isMain = input === seedOf(form.choice);
  const idle = form.draft.idleSeeds[input.key];
  const setIdle = (seed: string) => ({ idleSeeds: { ...form.draft.idleSeeds, [input.key]: seed } });
  // the seed that is shown is the one that runs
  const roll = () => form.setText(input, randomSeed(input));
  const turn = () => {
    if (!isKept) return form.setText(input, idle ?? randomSeed(input));
    form.change({ ...setIdle(text.trim()), texts: { ...form.draft.texts, [input.key]: "" } });
  };
  return (
    <>
      <div className={styles.seed}>
        <NumberText
          input={input}
          text={text}
          placeholder={idle ?? texts.form.newSeed}
          onChange={(next) => form.setText(input, next)}
          onLeave={onLeave}
        />
        <IconButton icon={Dices} name={texts.form.roll} onClick={roll} />
        <IconButton
          icon={isKept ? Lock : LockOpen}
          name={isKept ? texts.form.unlock : texts.form.lock}
          isPressed={isKept}
          onClick={turn}
        />
      </div>
      {isMain && isKept && form.isMany && (
        <Segmented
          name={texts.form.manySeeds}
          value={form.draft.seeds}
          choices={[
            { value: "increment", name: texts.form.countUp },
            { value: "fixed", name: texts.form.same },
          ]}
          onChange={(seeds) => form.change({ seeds: seeds === "fixed" ? "fixed" : "increment" })}
        />
      )}
    </>
  );
}
