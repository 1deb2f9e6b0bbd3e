import { ChevronDown } from "lucide-react";
import { FolderField } from "@/folders/FolderField";
import { Field, Select, TextField } from "@/kit";
import { useSession } from "@/session/session";
import { create as texts } from "@/texts/create";
import { Collapsible } from "./Collapsible";
import type { Form } from "./form";
import styles from "./PlanPanel.module.css";

const PLACES: Record<string, number> = { first: 10, usual: 0, last: -10 };

export function BatchOptions({ form, root }: { form: Form; root: string | null }) {
  const { draft } = form;
  const { isGuest } = useSession();
  const { plan } = texts;
  const place = Object.entries(PLACES).find(([, value]) => value === Math.sign(draft.priority) * 10)?.[0] ?? "usual";
  const isUsed = Boolean(draft.label || draft.outputFolder || draft.priority || draft.notify);
  return (
    <Collapsible className={styles.options} isNeeded={isUsed}>
      <summary>
        <span>{plan.more}</span>
        <ChevronDown aria-hidden />
      </summary>
      <div className={styles.optionFields}>
        <Field name={plan.name}>
          <TextField
            value={draft.label}
            maxLength={200}
            placeholder={form.choice.name}
            onChange={(event) => form.change({ label: event.target.value })}
          />
        </Field>
        {root !== null && (
          <Field name={plan.folder} hint={plan.folderHint(root)} problem={form.problems.output_folder}>
            {isGuest ? (
              <TextField
                value={draft.outputFolder}
                maxLength={200}
                placeholder={plan.folderPlaceholder}
                onChange={(event) => form.change({ outputFolder: event.target.value })}
              />
            ) : (
              <FolderField
                name={plan.folder}
                value={draft.outputFolder}
                placeholder={plan.folderPlaceholder}
                start={root}
                isInside
                isEditable
                onChange={(outputFolder) => form.change({ outputFolder })}
              />
            )}
          </Field>
        )}
        <Field name={plan.place}>
          <Select
            value={place}
            choices={Object.entries(plan.places).map(([value, name]) => ({ value, name }))}
            onChange={(next) => form.change({ priority: PLACES[next] ?? 0 })}
          />
        </Field>
        {root !== null && (!isGuest || draft.notify) && (
          <Field name={plan.whenDone} hint={plan.whenDoneHint} problem={form.problems.notify_urls}>
            <TextField
              value={draft.notify}
              spellCheck={false}
              autoComplete="off"
              placeholder={plan.whenDonePlaceholder}
              onChange={(event) => form.change({ notify: event.target.value })}
            />
          </Field>
        )}
      </div>
    </Collapsible>
  );
}
