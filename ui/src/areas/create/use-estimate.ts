import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { Problem } from "@/api/problem";
import { pendingUploads } from "./drafts";
import { type Form, validateDraft } from "./form";
import { type Estimate, estimate } from "./queries";
import { batchRequest, type DeskBatch, errorsByField, folderProblemIn } from "./submission";

const SETTLE_MS = 250;

interface Estimated {
  found: Estimate | null;
  folderProblem: string | null;
  /** Problems of a sweep and of wildcards, which only the server can read, by field. */
  problems: Readonly<Record<string, string>>;
}

const NOTHING: Estimated = { found: null, folderProblem: null, problems: {} };

/** Server estimate, debounced, for a valid form. */
export function useEstimate(form: Form, isDesk: boolean): Estimated {
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
  if (asked === null) return NOTHING;
  const refused = error instanceof Problem ? error : null;
  const folderProblem = asked.input_subdir !== undefined && refused ? folderProblemIn(refused) : null;
  const isRead = asked.sweep !== undefined || asked.wildcards !== undefined;
  const problems = isRead && refused ? errorsByField(choice, refused.errors) : {};
  return { found: folderProblem || Object.keys(problems).length ? null : (data ?? null), folderProblem, problems };
}
