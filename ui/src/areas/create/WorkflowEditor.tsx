import { useEffect, useEffectEvent } from "react";
import { useSession } from "@/session/session";
import { useCommand } from "./command";
import styles from "./create.module.css";
import { FormView } from "./FormView";
import { useForm } from "./form";
import type { Choice } from "./inputs";
import { PlanPanel } from "./PlanPanel";
import { useUrlPrefill } from "./prefill";
import { useEstimate } from "./use-estimate";
import { useSubmit } from "./use-submit";
import { WorkflowMenu } from "./WorkflowMenu";

/** Problems found while a file was imported, for the form of the new workflow. */
export interface ReportedProblems {
  slug: string;
  problems: Record<string, string>;
}

interface WorkflowEditorProps {
  choice: Choice;
  all: readonly Choice[];
  reported: ReportedProblems | null;
}

export function WorkflowEditor({ choice, all, reported }: WorkflowEditorProps) {
  const { desk, isGuest } = useSession();
  const form = useForm(choice);
  const command = useCommand(form);
  const submission = useSubmit(form, { isDesk: desk !== null });
  const { found, folderProblem } = useEstimate(form, desk !== null);
  useUrlPrefill(choice, all, form);
  const showReported = useEffectEvent((report: ReportedProblems) => {
    if (report.slug === choice.slug) form.setProblems(report.problems);
  });
  useEffect(() => {
    if (reported) showReported(reported);
  }, [reported]);
  return (
    <>
      <div className={styles.middle}>
        <FormView form={form} found={found} folderProblem={folderProblem}>
          {choice.kind === "workflow" && !choice.isScript && !isGuest && <WorkflowMenu choice={choice} />}
        </FormView>
      </div>
      <PlanPanel form={form} submission={submission} command={command} found={found} folderProblem={folderProblem} />
    </>
  );
}
