import { Images, SlidersHorizontal } from "lucide-react";
import { useEffect, useEffectEvent, useState } from "react";
import { Button } from "@/kit";
import { useSession } from "@/session/session";
import { create as texts } from "@/texts/create";
import { useCommand } from "./command";
import styles from "./create.module.css";
import { FormView } from "./FormView";
import { useForm } from "./form";
import { type Choice, promptOf } from "./inputs";
import { PlanPanel } from "./PlanPanel";
import { useUrlPrefill } from "./prefill";
import { usePriceOfJobs } from "./price";
import { Results } from "./Results";
import { useEstimate } from "./use-estimate";
import { useResults } from "./use-results";
import { focusField, useSubmit } from "./use-submit";
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
  const typed = useForm(choice);
  const { found, isFresh, folderProblem, problems } = useEstimate(typed, desk !== null);
  const form = { ...typed, problems: { ...problems, ...typed.problems } };
  const command = useCommand(typed);
  const price = usePriceOfJobs(typed, desk !== null);
  const submission = useSubmit(form, { isDesk: desk !== null, price });
  const results = useResults(choice.workflowSlug);
  const [view, setView] = useState<"form" | "results">("form");
  const toPrompt = () => {
    setView("form");
    // a phone shows the form only then
    requestAnimationFrame(() => focusField((promptOf(choice) ?? choice.properties[0])?.key ?? ""));
  };
  const recall = useUrlPrefill(choice, all, form);
  const showReported = useEffectEvent((report: ReportedProblems) => {
    if (report.slug === choice.slug) form.setProblems(report.problems);
  });
  useEffect(() => {
    if (reported) showReported(reported);
  }, [reported]);
  return (
    <>
      <div className={styles.middle} data-view={view}>
        <FormView form={form} found={found} folderProblem={folderProblem}>
          {choice.kind === "workflow" && !choice.isScript && !isGuest && <WorkflowMenu choice={choice} />}
        </FormView>
        <PlanPanel
          form={form}
          submission={submission}
          command={command}
          found={found}
          isFresh={isFresh}
          folderProblem={folderProblem}
        >
          <Button
            className={styles.toggle ?? ""}
            icon={view === "form" ? Images : SlidersHorizontal}
            onClick={() => setView(view === "form" ? "results" : "form")}
          >
            {view === "form" ? texts.results.count(results.total) : texts.results.form}
          </Button>
        </PlanPanel>
      </div>
      <Results
        workflow={choice.workflowSlug}
        found={results}
        view={view}
        onRecall={(jobId) => void recall(jobId).then(toPrompt)}
        onPrompt={toPrompt}
      />
    </>
  );
}
