import { RotateCcw } from "lucide-react";
import type { ReactNode } from "react";
import { Button, ErrorCard, Field, TextField, toast, toastProblem } from "@/kit";
import { breakable } from "@/kit/breakable";
import { Segmented } from "@/kit/Segmented";
import { useSession } from "@/session/session";
import { create as texts } from "@/texts/create";
import { addFiles } from "./drafts";
import { FieldGroup } from "./FieldGroup";
import { FileInputs } from "./FileInputs";
import type { Form } from "./form";
import styles from "./form.module.css";
import { InputField } from "./InputField";
import { canVary, type Input, isFile, isNegative, isPrompt, primaryOf, sectionsOf } from "./inputs";
import { Presets } from "./Presets";
import { PromptField } from "./PromptField";
import type { Estimate } from "./queries";
import { RecallBanner } from "./RecallBanner";
import { canPair, sweepOf, variationsHint } from "./sweep";
import { useScriptHints } from "./use-script-hints";

interface FormViewProps {
  form: Form;
  found: Estimate | null;
  folderProblem: string | null;
  /** Next to the title. */
  children?: ReactNode;
  /** Without presets and variations. */
  isPlain?: boolean;
}

export function FormView({ form, found, folderProblem, children, isPlain = false }: FormViewProps) {
  const { choice, draft } = form;
  const { desk } = useSession();
  const hints = useScriptHints(form);
  const sections = sectionsOf(choice);
  const primary = primaryOf(choice);
  const lists = sweepOf(choice, draft);
  const hasTries = !isPlain && !choice.isScript && canVary(choice);
  // a desk combines lists; a server takes single jobs
  const canSweep = !isPlain && desk !== null && !choice.isScript;
  const canBrowse = !isPlain && desk !== null;
  const startOver = () => {
    const undo = form.clear();
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
  const show = (each: Input) => {
    if (isFile(each)) {
      return (
        <FileInputs
          key={each.key}
          form={form}
          input={each}
          root={desk?.input_folder ?? null}
          folderProblem={each === primary ? folderProblem : null}
          onSample={desk && each === primary && each.type === "image" ? sample : null}
        />
      );
    }
    const given = { form, input: each, hint: hints[each.key], canSweep };
    return !isPlain && (isPrompt(each) || isNegative(each)) ? (
      <PromptField key={each.key} {...given} />
    ) : (
      <InputField key={each.key} {...given} canBrowse={canBrowse} />
    );
  };
  const hasValues = choice.properties.some((each) => !["image", "video", "audio"].includes(each.type));
  return (
    <form className={styles.form} aria-label={choice.name} onSubmit={(event) => event.preventDefault()} noValidate>
      <div className={styles.formHead}>
        <h2>{breakable(choice.name)}</h2>
        <Button look="quiet" size="small" icon={RotateCcw} onClick={startOver}>
          {texts.form.startOver}
        </Button>
        {children}
      </div>
      {draft.from && <RecallBanner form={form} />}
      {choice.waiting && (
        <ErrorCard tone="warn" title={texts.form.waiting}>
          {choice.waiting}
        </ErrorCard>
      )}
      {sections.files.map(show)}
      {sections.rows.map((row) =>
        row.length > 1 ? (
          <div key={row[0]?.key} className={styles.grid}>
            {row.map(show)}
          </div>
        ) : (
          row.map(show)
        ),
      )}
      {hasValues && !isPlain && <Presets form={form} />}
      {sections.wide.map(show)}
      {(sections.main.length > 0 || hasTries) && (
        <div className={styles.grid}>
          {hasTries && (
            <div data-field="tries" className={styles.field}>
              <Field name={texts.form.tries} aside={variationsHint(choice, draft)} problem={form.problems.tries}>
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
          {canPair(lists.files.length, lists.prompts.length, choice, draft) && (
            <div className={styles.wide}>
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
            </div>
          )}
          {sections.main.map(show)}
        </div>
      )}
      {sections.groups.map((each) => (
        <FieldGroup
          key={each.name}
          form={form}
          name={each.name}
          inputs={each.inputs}
          found={found}
          canSweep={canSweep}
          canBrowse={canBrowse}
        />
      ))}
    </form>
  );
}
