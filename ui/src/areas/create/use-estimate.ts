import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { Problem } from "@/api/problem";
import { type Draft, pendingUploads } from "./drafts";
import { type Form, validateDraft } from "./form";
import type { Choice } from "./inputs";
import { type Estimate, estimate } from "./queries";
import { batchRequest, type DeskBatch, errorsByField, folderProblemIn } from "./submission";

const SETTLE_MS = 250;

interface Estimated {
  found: Estimate | null;
  /** Whether `found` matches the current draft. The last estimate is shown until the next one arrives. */
  isFresh: boolean;
  folderProblem: string | null;
  /** Problems of sweeps and wildcards by field. Only the server can evaluate these. */
  problems: Readonly<Record<string, string>>;
}

const NOTHING: Estimated = { found: null, isFresh: false, folderProblem: null, problems: {} };

/** Server estimate, debounced, for a valid form. */
export function useEstimate(form: Form, isDesk: boolean): Estimated {
  const { choice, draft } = form;
  const isReady =
    isDesk && !choice.waiting && !pendingUploads(draft).length && !Object.keys(validateDraft(choice, draft)).length;
  const [asked, setAsked] = useState<{ choice: Choice; draft: Draft; body: DeskBatch } | null>(null);
  useEffect(() => {
    if (!isReady) return setAsked(null);
    const timer = setTimeout(() => setAsked({ choice, draft, body: batchRequest(choice, draft) }), SETTLE_MS);
    return () => clearTimeout(timer);
  }, [choice, draft, isReady]);
  const { data, error, isPlaceholderData } = useQuery({
    ...estimate(asked?.body ?? { values: {} }),
    enabled: asked !== null,
    placeholderData: keepPreviousData,
  });
  if (asked === null) return NOTHING;
  const refused = error instanceof Problem ? error : null;
  const { body } = asked;
  const folderProblem = body.input_subdir !== undefined && refused ? folderProblemIn(refused) : null;
  const isRead = body.sweep !== undefined || body.wildcards !== undefined;
  const problems = isRead && refused ? errorsByField(choice, refused.errors) : {};
  const found = folderProblem || Object.keys(problems).length ? null : (data ?? null);
  const isFresh = found !== null && !isPlaceholderData && asked.choice === choice && asked.draft === draft;
  return { found, isFresh, folderProblem, problems };
}
