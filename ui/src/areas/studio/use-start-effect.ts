import { useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useEffect, useRef, useState } from "react";
import { newKey, post } from "@/api/client";
import { stringify } from "@/api/json";
import { Problem, sentence } from "@/api/problem";
import { keys } from "@/api/queries";
import { type Draft, pendingUploads } from "@/areas/create/drafts";
import { type Form, validateDraft } from "@/areas/create/form";
import { primaryOf } from "@/areas/create/inputs";
import { PRICES } from "@/areas/create/price";
import { errorsByField, payloadOf } from "@/areas/create/submission";
import { useLatest } from "@/lib/use-latest";
import { studio } from "@/texts/studio";
import type { StudioEffect } from "./queries";
import type { Uploader } from "./use-upload";

const texts = studio.effect;

/** The studio runs one job: a multi-line text is one prompt. */
export const asSingleJob = (draft: Draft): Draft => ({
  ...draft,
  byLine: false,
  negativesByLine: false,
  tries: "1",
  folder: null,
});

export interface StartState {
  start: () => void;
  dismiss: () => void;
  /** Whether Start was pressed while a file is still uploading. */
  isWanted: boolean;
  isBusy: boolean;
  problem: string | null;
  fileProblem: string | null;
}

/** State of the uploads other than the primary file. */
function otherUploads(draft: Draft): "sent" | "sending" | "refused" {
  if (Object.values(draft.files).some((given) => given.some((each) => each.problem))) return "refused";
  return pendingUploads(draft).length ? "sending" : "sent";
}

/** Submits the form as a job. Repeating the same request does not create a second job. */
export function useStartEffect(
  effect: StudioEffect,
  form: Form,
  { upload }: Uploader,
  price: number | null,
): StartState {
  const navigate = useNavigate();
  const client = useQueryClient();
  const primary = primaryOf(form.choice);
  const [isWanted, setWanted] = useState(false);
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  const [fileProblem, setFileProblem] = useState<string | null>(null);
  const others = otherUploads(form.draft);
  const videos = useRef(new Map<string, string>());
  const last = useRef({ text: "", key: "" });

  const isSubmitting = useRef(false);

  const submit = async () => {
    // two at once would create two videos and two jobs
    if (isSubmitting.current) return;
    if (price === null) {
      // nobody pays a price that the button did not show
      setProblem(texts.priceUnknown);
      setWanted(false);
      return;
    }
    isSubmitting.current = true;
    setBusy(true);
    setProblem(null);
    try {
      const videoId = upload?.id ? await videoOf(upload.id) : null;
      const body = {
        effect_id: effect.id,
        input_payload: payloadOf(form.choice, asSingleJob(form.draft)),
        // the price on the button: the server rejects the job if it changed
        expected_tokens: price,
        ...(videoId && { video_id: videoId }),
      };
      const text = stringify(body);
      if (last.current.text !== text) last.current = { text, key: newKey() };
      const { data: job } = await post("/api/ai-jobs", {
        body: { ...body, idempotency_key: last.current.key },
      });
      void client.invalidateQueries({ queryKey: keys.wallet });
      void client.invalidateQueries({ queryKey: keys.jobs });
      await navigate({ to: "/studio/videos/$id", params: { id: job.id } });
    } catch (thrown) {
      const { errors } = thrown instanceof Problem ? thrown : { errors: {} };
      const byField = errorsByField(form.choice, errors);
      form.setProblems(byField);
      if (primary && byField[primary.key]) setFileProblem(byField[primary.key] ?? null);
      setProblem(sentence(thrown));
      // the balance or the price may have changed
      void client.invalidateQueries({ queryKey: keys.wallet });
      void client.invalidateQueries({ queryKey: keys.effects });
      void client.invalidateQueries({ queryKey: PRICES });
    } finally {
      isSubmitting.current = false;
      setBusy(false);
      setWanted(false);
    }
  };

  /** One video per uploaded file, however often it is started. */
  const videoOf = async (fileId: string): Promise<string> => {
    const known = videos.current.get(fileId);
    if (known) return known;
    const { data } = await post("/api/videos", { body: { original_file_id: fileId, effect_id: effect.id } });
    videos.current.set(fileId, data.id);
    return data.id;
  };

  const start = () => {
    const { [primary?.key ?? ""]: _file, ...found } = validateDraft(form.choice, asSingleJob(form.draft));
    const isLacking = Boolean(primary?.required && (!upload || upload.state === "refused"));
    form.setProblems(found);
    setFileProblem(isLacking ? texts.needsFile : null);
    const isWrong = Object.keys(found).length > 0;
    setProblem(isWrong ? texts.fix : isLacking ? texts.needsFile : others === "refused" ? texts.refusedOther : null);
    if (isWrong || isLacking || others === "refused") return;
    if ((upload && upload.state !== "sent") || others === "sending") setWanted(true);
    else void submit();
  };

  const state = upload?.state ?? null;
  useEffect(() => {
    if (state) setFileProblem(null);
  }, [state]);
  const latestSubmit = useLatest(submit);
  useEffect(() => {
    if (!isWanted) return;
    const isOff = (state === null && primary?.required) || state === "refused" || others === "refused";
    if (isOff) {
      setWanted(false);
      if (others === "refused") setProblem(texts.refusedOther);
    } else if ((state === null || state === "sent") && others === "sent") void latestSubmit.current();
  }, [isWanted, state, others, primary, latestSubmit]);

  return { start, dismiss: () => setWanted(false), isWanted, isBusy, problem, fileProblem };
}
