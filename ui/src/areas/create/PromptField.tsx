import { RotateCcw } from "lucide-react";
import { Field, TextArea } from "@/kit";
import { Segmented } from "@/kit/Segmented";
import { create as texts } from "@/texts/create";
import type { Form } from "./form";
import styles from "./form.module.css";
import { type Input, isPrompt } from "./inputs";
import { hasWildcards, isOnePromptPerLine, splitLines } from "./sweep";
import { textOf } from "./values";

const WILDCARD_MODES = ["off", "random", "all"] as const;
/** Options of a dynamic prompt are drawn for each job, so it is never used as typed. */
const DYNAMIC_MODES = ["random", "all"] as const;

interface PromptFieldProps {
  form: Form;
  input: Input;
  hint: string | undefined;
  /** Whether wildcards can be expanded. */
  canSweep: boolean;
}

/** One prompt, or one per line. */
export function PromptField({ form, input, hint, canSweep }: PromptFieldProps) {
  const { choice, draft } = form;
  const text = textOf(input, choice, draft.texts);
  const isMain = isPrompt(input);
  const isOn = isMain ? isOnePromptPerLine(choice, draft) : draft.negativesByLine;
  const count = splitLines(text).length;
  const was = form.recalledText(input);
  const modes = input.is_dynamic_prompt ? DYNAMIC_MODES : WILDCARD_MODES;
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
        hint={hint ?? (input.is_dynamic_prompt && !canSweep ? texts.form.dynamicPrompt : undefined)}
        problem={form.problems[input.key]}
        isRequired={input.required}
      >
        <TextArea value={text} rows={isMain ? 3 : 2} onChange={(event) => form.setText(input, event.target.value)} />
      </Field>
      {canSweep && (hasWildcards(text) || (isMain && draft.wildcards !== "off")) && (
        <div className={styles.wildcards}>
          <span>{texts.form.wildcards}</span>
          <Segmented
            name={texts.form.wildcards}
            value={input.is_dynamic_prompt && draft.wildcards === "off" ? "random" : draft.wildcards}
            choices={modes.map((value) => ({ value, name: texts.form.wildcardModes[value] }))}
            onChange={(next) => form.change({ wildcards: WILDCARD_MODES.find((each) => each === next) ?? "off" })}
          />
        </div>
      )}
    </div>
  );
}
