// Fills the form from the URL: `from` (an earlier job), `preset` or `input` (a stored file).

import { useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useEffect, useEffectEvent } from "react";
import { get } from "@/api/client";
import { sentence } from "@/api/problem";
import { toast, toastProblem } from "@/kit";
import { useSession } from "@/session/session";
import { create as texts } from "@/texts/create";
import {
  type DraftFile,
  draftFileOf,
  draftOf,
  EMPTY,
  goneFile,
  newFileKey,
  replaceDraft,
  withOnlyInput,
} from "./drafts";
import type { Form } from "./form";
import { type Choice, isFile, primaryOf, promptOf } from "./inputs";
import { applyPreset } from "./Presets";
import { aboutJob, presets } from "./queries";

/** Returns a function that recalls a job, even if its values in the form were changed. */
export function useUrlPrefill(choice: Choice, all: readonly Choice[], form: Form): (jobId: string) => Promise<void> {
  const { workflow, from, preset, input } = useSearch({ from: "/create" });
  const navigate = useNavigate({ from: "/create" });
  const { data: known } = useQuery(presets);
  const { desk } = useSession();

  const fetchAndFill = async (id: string, signal?: AbortSignal) => {
    try {
      const [job, about] = await Promise.all([
        get("/api/ai-jobs/{job_id}", { path: { job_id: id } }),
        desk ? aboutJob(id) : null,
      ]);
      if (signal?.aborted) return;
      const target =
        job.effect_id === null || job.effect_id === undefined
          ? (all.find((each) => each.kind === "workflow" && each.slug === job.workflow_slug) ??
            // the workflow of the job was removed, and added again with another slug
            all.find((each) => each.slug === workflow))
          : all.find((each) => each.effectId === job.effect_id);
      if (!target) {
        const gone = job.workflow_slug ?? "";
        // the page then offers to add the workflow again
        return void navigate({ search: { workflow: gone, from: id }, replace: true });
      }
      if (!about) {
        toast({ text: texts.from.onServer(target.name) });
        return void navigate({ search: { workflow: target.slug }, replace: true });
      }
      const undo = fillFromJob(target, id, job.label ?? id, about.inputs);
      void navigate({ search: { workflow: target.slug, from: id }, replace: true });
      if (!undo) return;
      const run = () => {
        undo();
        // without `from`: a reload would recall the job again
        void navigate({ search: { workflow: target.slug }, replace: true });
      };
      toast({ text: texts.from.loaded(target.name), action: { name: texts.form.undo, run } });
    } catch (thrown) {
      toast({ text: `${texts.from.failed} ${sentence(thrown)}`, tone: "bad" });
    }
  };
  const recallJob = useEffectEvent(async (id: string, signal: AbortSignal) => {
    // already recalled: a reload keeps later changes
    if (draftOf(choice.slug).from?.id !== id) await fetchAndFill(id, signal);
  });
  useEffect(() => {
    if (!from) return;
    const stop = new AbortController();
    void recallJob(from, stop.signal);
    return () => stop.abort();
  }, [from]);

  const applyNamed = useEffectEvent((name: string) => {
    const found = known?.find((each) => each.name === name);
    if (!found) return;
    applyPreset(form, found);
    void navigate({ search: { workflow: choice.slug }, replace: true });
  });
  useEffect(() => {
    if (preset && known) applyNamed(preset);
  }, [preset, known]);

  const takeInput = useEffectEvent(async (id: string) => {
    try {
      const file = await get("/api/videos/uploads/{file_id}", { path: { file_id: id } });
      const accepts = (each: Choice) => file.mime_type.startsWith(`${primaryOf(each)?.type ?? "-"}/`);
      const target = accepts(choice) ? choice : all.find((each) => !each.waiting && accepts(each));
      const key = target && primaryOf(target)?.key;
      if (!target || !key) return toast({ text: texts.dropping.noInput, tone: "bad" });
      const given = draftFileOf(file);
      const undo = replaceDraft(target.slug, withOnlyInput(draftOf(target.slug), key, given));
      toast({
        text: texts.dropping.isInput(given.name),
        tone: "good",
        ...(undo && { action: { name: texts.form.undo, run: undo } }),
      });
      // going back must not add the input again
      void navigate({ search: { workflow: target.slug }, replace: true });
    } catch (thrown) {
      toastProblem(thrown);
    }
  });
  useEffect(() => {
    if (input) void takeInput(input);
  }, [input]);
  return fetchAndFill;
}

type JobInputs = Awaited<ReturnType<typeof aboutJob>>["inputs"];

/** Copies the inputs of an earlier job into the draft; returns the undo, if the draft had content. */
function fillFromJob(choice: Choice, id: string, label: string, inputs: JobInputs): (() => void) | null {
  const files: Record<string, DraftFile[]> = {};
  const values: Record<string, string> = {};
  for (const input of choice.properties) {
    const found = inputs.find((each) => each.key === input.key);
    if (!found) continue;
    if (!isFile(input)) {
      values[input.key] = found.value === null || found.value === undefined ? "" : String(found.value);
    } else if (found.file_id) {
      const name = String(found.value ?? "");
      const given = { key: newFileKey(), id: found.file_id, name, mime: `${input.type}/*`, url: found.url ?? null };
      files[input.key] = [{ ...given, part: 1, problem: null }];
    } else files[input.key] = [goneFile(String(found.value ?? input.label), `${input.type}/*`)];
  }
  // the job had one prompt, even if it has several lines
  const prompt = promptOf(choice);
  const byLine = prompt && values[prompt.key]?.trim().includes("\n") ? false : null;
  const next = { ...EMPTY, texts: values, files, byLine, from: { id, texts: values, label } };
  return replaceDraft(choice.slug, next);
}
