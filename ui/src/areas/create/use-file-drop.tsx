// Dropped, pasted or chosen files: workflows, media with an embedded workflow, and inputs.

import { useQueryClient } from "@tanstack/react-query";
import { type ReactNode, useEffect, useState } from "react";
import { call } from "@/api/client";
import { Problem, sentence } from "@/api/problem";
import { keys } from "@/api/queries";
import type { Workflow } from "@/api/types";
import { typeOf, upload } from "@/api/uploads";
import { toast, toastProblem } from "@/kit";
import { useDroppedFiles } from "@/lib/file-drop";
import { useLatest } from "@/lib/use-latest";
import { create as texts } from "@/texts/create";
import { desk as deskTexts } from "@/texts/desk";
import { classifyFiles } from "./classify-files";
import { addFiles, addStored, changeDraft, draftOf } from "./drafts";
import { ImportDialog, type Question } from "./ImportDialog";
import { acceptsMime, type Choice, choicesOf, isFile, isSeed, promptOf } from "./inputs";
import { isPromptFile, readPrompts } from "./prompt-files";
import { MAX_JOBS } from "./sweep";

interface FileDrop {
  take: (files: readonly File[]) => void;
  dialog: ReactNode;
}

interface FileDropOptions {
  choices: readonly Choice[];
  chosen: Choice | null;
  isDesk: boolean;
  isGuest: boolean;
  hasOwnWorkflows: boolean;
  choose: (slug: string) => void;
  /** Problems to show in the form of an imported workflow. */
  onProblems: (slug: string, problems: Record<string, string>) => void;
}

export function useFileDrop({
  choices,
  chosen,
  isDesk,
  isGuest,
  hasOwnWorkflows,
  choose,
  onProblems,
}: FileDropOptions): FileDrop {
  const client = useQueryClient();
  const [questions, setQuestions] = useState<readonly Question[]>([]);
  const [question = null] = questions;
  const [isBusy, setBusy] = useState(false);
  const ask = (next: Question) => setQuestions((before) => [...before, next]);
  const close = () => setQuestions((before) => before.slice(1));

  /** The input for these files: in the open workflow, otherwise in the first workflow that accepts them. */
  const targetFor = (mimes: string[], first = chosen): [Choice, string] | null => {
    const inputOf = (each: Choice | null) =>
      each?.properties.find((input) => mimes.some((mime) => acceptsMime(input, mime)));
    const preferred = [first, chosen].find((each) => inputOf(each));
    const found = preferred ?? choices.find((each) => !each.waiting && inputOf(each)) ?? null;
    const input = inputOf(found);
    if (found && input) {
      choose(found.slug);
      return [found, input.key];
    }
    toast({ text: texts.dropping.noInput, tone: "bad" });
    return null;
  };
  const put = (files: readonly File[], first = chosen) => {
    const place = targetFor(files.map(typeOf), first);
    if (!place) return;
    const [choice, key] = place;
    const input = choice.properties.find((each) => each.key === key);
    if (!input) return;
    const isOne = !input.is_primary_input;
    addFiles(
      choice.slug,
      key,
      files.filter((each) => acceptsMime(input, typeOf(each))),
      { isOne },
    );
  };
  const putStored = (id: string, mime: string) => {
    const place = targetFor([mime]);
    if (!place) return;
    const [choice, key] = place;
    const isOne = !choice.properties.find((each) => each.key === key)?.is_primary_input;
    addStored(choice.slug, key, id, { isOne }).catch(toastProblem);
  };

  /** Sends a graph, opens its workflow, and asks if the server refuses it. */
  const sendGraph = async (
    send: () => Promise<{ data: Workflow; message?: string | null }>,
    name: string,
    isCarried: boolean,
    questionAbout: (thrown: unknown) => Question,
  ): Promise<Choice | undefined> => {
    setBusy(true);
    try {
      const { data, message } = await send();
      await client.invalidateQueries({ queryKey: keys.workflows });
      choose(data.slug);
      if (isCarried) restoreValues(data, name, onProblems);
      toast({ text: message === "Added." ? texts.dropping.added(data.name) : (message ?? ""), tone: "good" });
      return choicesOf([], [data], null)[0];
    } catch (thrown) {
      ask(questionAbout(thrown));
    } finally {
      setBusy(false);
    }
    return undefined;
  };
  const addGraph = (
    graph: unknown,
    name: string,
    waits: boolean,
    isCarried: boolean,
    sameName: "refuse" | "number" = "refuse",
  ): Promise<Choice | undefined> => {
    const body = { graph, name: plainName(name), wait_for_missing: waits, same_name: sameName };
    return sendGraph(
      () => call<Workflow>("POST", "/api/workflows", body),
      name,
      isCarried,
      (thrown): Question => {
        const problem = sentence(thrown);
        if (!(thrown instanceof Problem)) return { about: "refused", name, problem };
        if (thrown.kind === "workflow_name_taken") {
          const slug = thrown.workflowSlug;
          const known = choices.find((each) => each.slug === slug)?.name ?? plainName(name);
          return { about: "taken", name, known, graph, slug, waits, carried: isCarried };
        }
        return thrown.kind === "missing_on_workers"
          ? { about: "missing", name, graph, problem, missing: thrown.missing, carried: isCarried }
          : { about: "refused", name, problem };
      },
    );
  };
  const replaceGraph = (graph: unknown, name: string, slug: string, isCarried: boolean) =>
    sendGraph(
      () => call<Workflow>("PATCH", `/api/workflows/${encodeURIComponent(slug)}`, { graph }),
      name,
      isCarried,
      (thrown) => ({ about: "refused", name, problem: sentence(thrown) }),
    );
  /** A single media file may contain the workflow that made it: ask what to do with it. */
  const offerCarried = async (file: File) => {
    try {
      const { id } = await upload(file);
      const { data } = await call<{ graph: unknown }>("GET", `/api/desk/files/${id}/workflow`);
      if (data.graph) return ask({ about: "carried", file, id, graph: data.graph });
      putStored(id, typeOf(file));
    } catch (thrown) {
      toastProblem(thrown);
    }
  };

  /** Each line becomes a prompt of the open workflow. */
  const takePrompts = async (files: readonly File[]) => {
    const target = [chosen, ...choices].find((each) => each && !each.waiting && promptOf(each)) ?? null;
    const input = target && promptOf(target);
    if (!input) return toast({ text: texts.dropping.noPrompt, tone: "bad" });
    const prompts: string[] = [];
    for (const file of files) {
      const found = await readPrompts(file);
      if (!found) return toast({ text: texts.dropping.notText(file.name), tone: "bad" });
      prompts.push(...found);
    }
    const names = listNames(files.map((each) => each.name));
    if (!prompts.length) return toast({ text: texts.dropping.emptyText(names), tone: "bad" });
    if (prompts.length > MAX_JOBS) return toast({ text: texts.plan.tooMany(prompts.length, MAX_JOBS), tone: "bad" });
    const before = draftOf(target.slug);
    changeDraft(target.slug, (draft) => ({
      ...draft,
      texts: { ...draft.texts, [input.key]: prompts.join("\n") },
      byLine: true,
      // such as captions with braces: the user turns wildcards on
      wildcards: "off",
    }));
    choose(target.slug);
    toast({
      text: texts.dropping.prompts(prompts.length, names),
      tone: "good",
      action: { name: texts.form.undo, run: () => changeDraft(target.slug, () => before) },
    });
  };

  const takeAll = async (files: readonly File[]) => {
    // text files next to pictures are captions, not prompts
    if (files.length && files.every(isPromptFile)) return takePrompts(files);
    const { graphs, media, invalidJson, notWorkflows, unsupported } = await classifyFiles(files);
    for (const name of invalidJson) ask({ about: "refused", name, problem: texts.dropping.notJson(name) });
    for (const name of notWorkflows) ask({ about: "refused", name, problem: texts.dropping.notWorkflow(name) });
    let made: Choice | undefined;
    if (graphs.length && (isGuest || !hasOwnWorkflows))
      toast({ text: isGuest ? deskTexts.guest.noWorkflow : texts.effectsOnly, tone: "bad" });
    else for (const { name, graph } of graphs) made = (await addGraph(graph, name, false, false)) ?? made;
    const [first] = media;
    if (first && files.length === 1 && isDesk && !isGuest) return offerCarried(first);
    if (first) put(media, made ?? chosen);
    if (files.length > unsupported.length) {
      if (unsupported.length) toast({ text: texts.dropping.skipped(listNames(unsupported)), tone: "bad" });
    } else toast({ text: texts.dropping.cannotAny(listNames(unsupported)), tone: "bad" });
  };
  const take = (files: readonly File[]) => void takeAll(files).catch(toastProblem);

  const newest = useLatest(take);
  useDroppedFiles((files) => newest.current(files.map((each) => each.file)));
  useEffect(() => {
    const pasted = (event: ClipboardEvent) => {
      const files = [...(event.clipboardData?.files ?? [])];
      if (!files.length) return;
      event.preventDefault();
      newest.current(files);
    };
    addEventListener("paste", pasted);
    return () => removeEventListener("paste", pasted);
  }, [newest]);

  const dialog = question && (
    <ImportDialog
      question={question}
      isBusy={isBusy}
      onClose={close}
      onImport={(graph, name, waits, isCarried) => void addGraph(graph, name, waits, isCarried).then(close)}
      onReplace={(graph, name, slug, isCarried) => void replaceGraph(graph, name, slug, isCarried).then(close)}
      onKeepBoth={(graph, name, waits, isCarried) => void addGraph(graph, name, waits, isCarried, "number").then(close)}
      onUseAsInput={(id, file) => {
        close();
        putStored(id, typeOf(file));
      }}
    />
  );
  return { take, dialog };
}

const plainName = (name: string): string => name.replace(/\.\w+$/, "").slice(0, 200) || "workflow";

const MAX_NAMED = 3;
const listNames = (names: readonly string[]): string =>
  [
    ...names.slice(0, MAX_NAMED),
    ...(names.length > MAX_NAMED ? [texts.dropping.andMore(names.length - MAX_NAMED)] : []),
  ].join(", ");

/** Restores seeds of an embedded workflow; its input files must be chosen again. */
function restoreValues(made: Workflow, name: string, onProblems: FileDropOptions["onProblems"]): void {
  const seeds = made.properties.filter((each) => each.type === "number" && isSeed(each) && each.default_value !== null);
  changeDraft(made.slug, (draft) => ({
    ...draft,
    texts: { ...draft.texts, ...Object.fromEntries(seeds.map((each) => [each.key, String(each.default_value)])) },
  }));
  const fileInputs = made.properties.filter((each) => isFile(each) && each.required);
  if (fileInputs.length)
    onProblems(made.slug, Object.fromEntries(fileInputs.map((each) => [each.key, texts.dropping.missing(name)])));
}
