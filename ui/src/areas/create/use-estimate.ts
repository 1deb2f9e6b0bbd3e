import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { Problem } from "@/api/problem";
import { pendingUploads } from "./drafts";
import { type Form, validateDraft } from "./form";
import { type Estimate, estimate } from "./queries";
import { batchRequest, type DeskBatch, folderProblemIn } from "./submission";

const SETTLE_MS = 250;

/** Server estimate, debounced, for a valid form. */
export function useEstimate(form: Form, isDesk: boolean): { found: Estimate | null; folderProblem: string | null } {
  const { choice, draft } = form;
  const isReady =
    isDesk && !choice.waiting && !pendingUploads(draft).length && !Object.keys(validateDraft(choice, draft)).length;
  const [asked, setAsked] = useState<DeskBatch | null>(null);
  useEffect(() => {
    if (!isReady) return setAsked(null);
    const timer = setTimeout(() => setAsked(batchRequest(choice, draft)), SETTLE_MS);
    return () => clearTimeout(timer);
  }, [choice, draft, isReady]);
  const { data, error } = useQuery({
    ...estimate(asked ?? { values: {} }),
    enabled: asked !== null,
    placeholderData: keepPreviousData,
  });
  if (asked === null) return { found: null, folderProblem: null };
  const folderProblem = asked.input_subdir !== undefined && error instanceof Problem ? folderProblemIn(error) : null;
  return { found: folderProblem ? null : (data ?? null), folderProblem };
}
