import { ChevronDown } from "lucide-react";
import { create as texts } from "@/texts/create";
import { Collapsible } from "./Collapsible";
import type { Form } from "./form";
import styles from "./form.module.css";
import { InputField } from "./InputField";
import type { Input } from "./inputs";
import type { Estimate } from "./queries";
import { isChanged, textOf } from "./values";

interface FieldGroupProps {
  form: Form;
  name: string;
  inputs: Input[];
  found: Estimate | null;
  canSweep: boolean;
  canBrowse: boolean;
}

/** Collapsed fields of one node, with a summary. */
export function FieldGroup({ form, name, inputs, found, canSweep, canBrowse }: FieldGroupProps) {
  const changed = inputs.filter(
    (each) => each.key in form.draft.sweep || isChanged(each, form.choice, form.draft.texts),
  ).length;
  const isModels = name === texts.form.models;
  const summary = isModels
    ? inputs.map((each) => textOf(each, form.choice, form.draft.texts).replace(/\.\w+$/, ""))
    : inputs.map((each) => each.label.toLowerCase());
  const isWrong = inputs.some((each) => each.key in form.problems);
  const isMissing = found?.missing?.items.some((each) => each.kind === "model") ?? false;
  return (
    <Collapsible className={styles.group} data-wrong={isWrong || undefined} isNeeded={isWrong}>
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
          <InputField key={each.key} form={form} input={each} canSweep={canSweep} canBrowse={canBrowse} />
        ))}
      </div>
    </Collapsible>
  );
}
