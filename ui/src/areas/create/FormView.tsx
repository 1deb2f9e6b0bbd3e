import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { ChevronDown, RotateCcw, X } from "lucide-react";
import type { ReactNode } from "react";
import { useSession } from "@/app/session";
import { Button, ErrorCard, Field, IconButton, TextArea, TextField, toast, toastProblem } from "@/kit";
import { Segmented } from "@/kit/Segmented";
import { create as texts } from "@/texts/create";
import { type Estimate, script } from "./asked";
import { Control } from "./Control";
import { canPair, isByLine, linesIn, listsOf, triesHint } from "./combine";
import styles from "./create.module.css";
import { addFiles } from "./drafts";
import { Fold } from "./Fold";
import type { Form } from "./form";
import { Inputs } from "./Inputs";
import { Presets } from "./Presets";
import { type Input, isChanged, isNegative, isPrompt, primaryOf, sectionsOf, seedOf, shownText } from "./rules";

interface FormViewProps {
  form: Form;
  found: Estimate | null;
  folderProblem: string | null;
  /** Beside its name. */
  children?: ReactNode;
  /** Only what is asked for: no presets, no tries. */
  isPlain?: boolean;
}

export function FormView({ form, found, folderProblem, children, isPlain = false }: FormViewProps) {
  const { choice, draft } = form;
  const { desk } = useSession();
  const hints = useHints(form);
  const sections = sectionsOf(choice);
  const primary = primaryOf(choice);
  const lists = listsOf(choice, draft);
  const hasTries = !isPlain && !choice.isScript && (seedOf(choice) !== undefined || choice.kind === "effect");
  const startOver = () => {
    const undo = form.startOver();
    toast({ text: texts.form.startedOver, action: { name: texts.form.undo, run: undo } });
  };
  const sample = async () => {
    try {
      const picture = await (await fetch("/api/desk/sample")).blob();
      const file = new File([picture], "sample.png", { type: "image/png" });
      if (primary) addFiles(choice.slug, primary.key, [file], { isOne: false });
    } catch (thrown) {
      toastProblem(thrown);
    }
  };
  const hasValues = choice.properties.some((each) => !["image", "video", "audio"].includes(each.type));
  return (
    <form className={styles.form} aria-label={choice.name} onSubmit={(event) => event.preventDefault()} noValidate>
      <div className={styles.formHead}>
        <h2>{choice.name}</h2>
        <Button look="quiet" size="small" icon={RotateCcw} onClick={startOver}>
          {texts.form.startOver}
        </Button>
        {children}
      </div>
      {draft.from && <From form={form} />}
      {choice.waiting && (
        <ErrorCard tone="warn" title={texts.form.waiting}>
          {choice.waiting}
        </ErrorCard>
      )}
      {sections.files.map((each) => (
        <Inputs
          key={each.key}
          form={form}
          input={each}
          root={desk?.input_folder ?? null}
          folderProblem={each === primary ? folderProblem : null}
          onSample={desk && each === primary && each.type === "image" ? sample : null}
        />
      ))}
      {hasValues && !isPlain && <Presets form={form} />}
      {sections.wide.map((each) =>
        !isPlain && (isPrompt(each) || isNegative(each)) ? (
          <Prompt key={each.key} form={form} input={each} hint={hints[each.key]} />
        ) : (
          <Control key={each.key} form={form} input={each} hint={hints[each.key]} />
        ),
      )}
      {(sections.main.length > 0 || hasTries) && (
        <div className={styles.grid}>
          {hasTries && (
            <div data-field="tries" className={styles.field}>
              <Field name={texts.form.tries} aside={triesHint(choice, draft)} problem={form.problems.tries}>
                <TextField
                  inputMode="numeric"
                  autoComplete="off"
                  value={draft.tries}
                  onChange={(event) => form.change({ tries: event.target.value })}
                  onKeyDown={(event) => {
                    if (event.key !== "ArrowUp" && event.key !== "ArrowDown") return;
                    event.preventDefault();
                    const next = (Number(draft.tries) || 1) + (event.key === "ArrowUp" ? 1 : -1);
                    form.change({ tries: String(Math.max(1, next)) });
                  }}
                />
              </Field>
            </div>
          )}
          {canPair(lists.files.length, lists.prompts.length, draft) && (
            <Field name={texts.form.combine}>
              <Segmented
                name={texts.form.combine}
                value={draft.isPairwise ? "pairs" : "product"}
                choices={[
                  { value: "product", name: texts.form.product },
                  { value: "pairs", name: texts.form.pairs },
                ]}
                onChange={(next) => form.change({ isPairwise: next === "pairs" })}
              />
            </Field>
          )}
          {sections.main.map((each) => (
            <Control key={each.key} form={form} input={each} hint={hints[each.key]} />
          ))}
        </div>
      )}
      {sections.groups.map((each) => (
        <Group key={each.name} form={form} name={each.name} inputs={each.inputs} found={found} />
      ))}
    </form>
  );
}

/** Many prompts, one to a line, or one text. */
function Prompt({ form, input, hint }: { form: Form; input: Input; hint: string | undefined }) {
  const { choice, draft } = form;
  const text = shownText(input, choice, draft.texts);
  const isMain = isPrompt(input);
  const isOn = isMain ? isByLine(choice, draft) : draft.negativesByLine;
  const count = linesIn(text).length;
  const was = form.before(input);
  const lines =
    count > 1 ? (
      <button
        type="button"
        className={styles.byLine}
        aria-pressed={isOn}
        onClick={() => form.change(isMain ? { byLine: !isOn } : { negativesByLine: !isOn })}
      >
        {isOn ? texts.form.byLineCount(count) : texts.form.wholeText}
      </button>
    ) : isOn ? (
      texts.form.byLineCount(1)
    ) : null;
  const aside =
    was !== null && was !== text ? (
      <span className={styles.asides}>
        <span className={styles.aside} data-other>
          <span className={styles.asideText} title={was}>
            {texts.form.was(was || "—")}
          </span>
          <button
            type="button"
            className={styles.reset}
            aria-label={texts.form.reset(input.label)}
            onClick={() => form.reset(input)}
          >
            <RotateCcw aria-hidden />
          </button>
        </span>
        {lines}
      </span>
    ) : (
      lines
    );
  return (
    <div data-field={input.key} className={styles.field}>
      <Field
        name={input.label}
        aside={aside}
        hint={hint}
        problem={form.problems[input.key]}
        isRequired={input.required}
      >
        <TextArea value={text} rows={isMain ? 3 : 2} onChange={(event) => form.setText(input, event.target.value)} />
      </Field>
    </div>
  );
}

interface GroupProps {
  form: Form;
  name: string;
  inputs: Input[];
  found: Estimate | null;
}

/** The values of one node, folded; what they are is summed up on its outside. */
function Group({ form, name, inputs, found }: GroupProps) {
  const changed = inputs.filter((each) => isChanged(each, form.choice, form.draft.texts)).length;
  const isModels = name === texts.form.models;
  const summary = isModels
    ? inputs.map((each) => shownText(each, form.choice, form.draft.texts).replace(/\.\w+$/, ""))
    : inputs.map((each) => each.label.toLowerCase());
  const isWrong = inputs.some((each) => each.key in form.problems);
  const isMissing = found?.missing?.items.some((each) => each.kind === "model") ?? false;
  return (
    <Fold className={styles.group} data-wrong={isWrong || undefined} isNeeded={isWrong}>
      <summary>
        <span className={styles.groupText}>
          <strong>{name}</strong>
          <span>{summary.join(isModels ? " · " : ", ")}</span>
        </span>
        <span className={styles.groupAside} data-changed={changed > 0 || undefined}>
          {changed
            ? texts.form.changed(changed)
            : isModels && found
              ? isMissing
                ? texts.form.missing
                : texts.form.onWorkers
              : texts.form.values(inputs.length)}
        </span>
        <ChevronDown aria-hidden />
      </summary>
      <div className={styles.grid}>
        {inputs.map((each) => (
          <Control key={each.key} form={form} input={each} />
        ))}
      </div>
    </Fold>
  );
}

/** The job that the form began as, and how far it differs by now. */
function From({ form }: { form: Form }) {
  const { from } = form.draft;
  const navigate = useNavigate({ from: "/create" });
  if (!from) return null;
  const end = () => {
    form.change({ from: null });
    // else a reload would put its values in again
    void navigate({ search: { workflow: form.choice.slug }, replace: true });
  };
  const differs = form.choice.properties.filter((each) => {
    const was = form.before(each);
    return was !== null && was !== shownText(each, form.choice, form.draft.texts);
  }).length;
  return (
    <div className={styles.from} role="status">
      <p>
        <strong>{texts.from.title(from.label)}</strong>
        <span>{differs ? texts.from.differs(differs) : texts.from.same}</span>
      </p>
      <IconButton icon={X} name={texts.from.end} size="small" onClick={end} />
      <Link to="/jobs/$id" params={{ id: from.id }}>
        {texts.from.open}
      </Link>
    </div>
  );
}

/** What to say beside the fields of a script, as it is configured. */
function useHints({ choice }: Form): Readonly<Record<string, string | undefined>> {
  const { data } = useQuery({ ...script, enabled: choice.isScript });
  if (!choice.isScript || !data) return {};
  const { hints } = texts.script;
  const options = Object.keys(data.extra_options);
  return {
    input_subdir: hints.input_subdir(data.input_folder),
    template: hints.template(data.template_folder),
    tries: hints.tries,
    extra_args: options.length ? hints.options(options.join(", ")) : hints.noOptions,
  };
}
