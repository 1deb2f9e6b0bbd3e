import { Button, Kbd } from "@/kit";
import { create as texts } from "@/texts/create";
import type { Command } from "./command";
import { pendingUploads } from "./drafts";
import { type Form, missingFileInput } from "./form";
import styles from "./PlanPanel.module.css";
import type { SubmitState } from "./use-submit";

interface SubmitButtonProps {
  form: Form;
  submission: SubmitState;
  command: Command;
  /** Null while the server counts. */
  count: number | null;
  isMissing: boolean;
  folderProblem: string | null;
  /** Whether the queue is paused, so that new jobs wait. */
  isPaused: boolean;
}

export function SubmitButton({
  form,
  submission,
  command,
  count,
  isMissing,
  folderProblem,
  isPaused,
}: SubmitButtonProps) {
  const { choice } = form;
  const left = pendingUploads(form.draft).length;
  const missing = missingFileInput(choice, form.draft);
  const isUnseen = choice.isScript && !command.isShown;
  const text = left
    ? texts.plan.sending(left)
    : submission.isBusy
      ? texts.plan.adding
      : isUnseen
        ? texts.script.show
        : missing
          ? texts.plan.missing(missing.type)
          : isMissing || submission.missing
            ? texts.plan.addAnyway
            : submission.isConfirming && submission.price !== null
              ? texts.plan.confirm(submission.price)
              : choice.isScript
                ? texts.script.run(count)
                : isPaused
                  ? texts.plan.addToPaused(count)
                  : texts.plan.add(count);
  const press = () => {
    if (isUnseen) {
      // show errors at their fields
      form.setProblems(command.errors);
      document.getElementById("command")?.scrollIntoView({ block: "nearest" });
      return;
    }
    void submission.submit(isMissing || submission.missing !== null);
  };
  return (
    <Button
      look="primary"
      size="large"
      isWide
      className={styles.add ?? ""}
      data-add
      isBusy={submission.isBusy}
      disabled={left > 0 || choice.waiting !== null || folderProblem !== null}
      title={folderProblem ?? undefined}
      onClick={press}
    >
      {text}
      <span className={styles.addKeys} aria-hidden>
        <Kbd keys="mod+Enter" />
      </span>
    </Button>
  );
}
