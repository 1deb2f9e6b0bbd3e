// Files that are dropped, pasted or chosen: workflows, pictures that carry one, and inputs.

import { useQueryClient } from "@tanstack/react-query";
import { type ReactNode, useEffect, useRef, useState } from "react";
import { call } from "@/api/client";
import { type Missing, Problem, sentence } from "@/api/problem";
import { keys } from "@/api/queries";
import type { Workflow } from "@/api/types";
import { typeOf, upload } from "@/api/uploads";
import { useDropped } from "@/app/dropping";
import { Button, Dialog, toast, toastProblem } from "@/kit";
import { common } from "@/texts/common";
import { create as texts } from "@/texts/create";
import styles from "./create.module.css";
import { addFiles, addStored, changeDraft } from "./drafts";
import { type Choice, choicesOf, isFile, isSeed, takes } from "./rules";
import { sortedOut } from "./sorting";

type Question =
  | { about: "missing"; name: string; graph: unknown; problem: string; missing: readonly Missing[]; carried: boolean }
  | { about: "refused"; name: string; problem: string }
  | { about: "carried"; file: File; id: string; graph: unknown };

interface Taking {
  take: (files: readonly File[]) => void;
  dialog: ReactNode;
}

interface Wanted {
  choices: readonly Choice[];
  chosen: Choice | null;
  isDesk: boolean;
  choose: (slug: string) => void;
  /** What is wrong with fields, once the form of a workflow is shown. */
  complain: (slug: string, problems: Record<string, string>) => void;
}

export function useTaking({ choices, chosen, isDesk, choose, complain }: Wanted): Taking {
  const client = useQueryClient();
  const [questions, setQuestions] = useState<readonly Question[]>([]);
  const [question = null] = questions;
  const [isBusy, setBusy] = useState(false);
  const ask = (next: Question) => setQuestions((before) => [...before, next]);
  const close = () => setQuestions((before) => before.slice(1));

  /** Into the form: of the one that is chosen, else of the first that takes such files. */
  const use = (mimes: string[], first = chosen): [Choice, string] | null => {
    const fitting = (each: Choice | null) => each?.properties.find((input) => mimes.some((mime) => takes(input, mime)));
    const liked = [first, chosen].find((each) => fitting(each));
    const found = liked ?? choices.find((each) => !each.waiting && fitting(each)) ?? null;
    const input = fitting(found);
    if (found && input) {
      choose(found.slug);
      return [found, input.key];
    }
    toast({ text: texts.taking.noInput, tone: "bad" });
    return null;
  };
  const put = (files: readonly File[], first = chosen) => {
    const place = use(files.map(typeOf), first);
    if (!place) return;
    const [choice, key] = place;
    const input = choice.properties.find((each) => each.key === key);
    if (!input) return;
    const isOne = !input.is_primary_input;
    addFiles(
      choice.slug,
      key,
      files.filter((each) => takes(input, typeOf(each))),
      { isOne },
    );
  };
  const putStored = (id: string, mime: string) => {
    const place = use([mime]);
    if (!place) return;
    const [choice, key] = place;
    const isOne = !choice.properties.find((each) => each.key === key)?.is_primary_input;
    addStored(choice.slug, key, id, { isOne }).catch(toastProblem);
  };

  const addGraph = async (
    graph: unknown,
    name: string,
    waits: boolean,
    isCarried: boolean,
  ): Promise<Choice | undefined> => {
    const plain = name.replace(/\.\w+$/, "").slice(0, 200) || "workflow";
    setBusy(true);
    try {
      const { data, message } = await call<Workflow>("POST", "/api/workflows", {
        graph,
        name: plain,
        wait_for_missing: waits,
      });
      await client.invalidateQueries({ queryKey: keys.workflows });
      choose(data.slug);
      if (isCarried) asItWas(data, name, complain);
      toast({ text: message === "Added." ? texts.taking.added(plain) : (message ?? ""), tone: "good" });
      return choicesOf([], [data], null)[0];
    } catch (thrown) {
      const isMissing = thrown instanceof Problem && thrown.kind === "missing_on_workers";
      const problem = sentence(thrown);
      ask(
        isMissing
          ? { about: "missing", name, graph, problem, missing: thrown.missing, carried: isCarried }
          : { about: "refused", name, problem },
      );
    } finally {
      setBusy(false);
    }
    return undefined;
  };
  /** What is asked now, answered by adding it. */
  const addAsked = (graph: unknown, name: string, waits: boolean, isCarried: boolean) =>
    addGraph(graph, name, waits, isCarried).then(close);

  /** One picture may carry the workflow that made it; whoever drops it on a field wants it there. */
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

  const takeAll = async (files: readonly File[]) => {
    const { graphs, media, broken, strange, left } = await sortedOut(files);
    for (const name of broken) ask({ about: "refused", name, problem: texts.taking.notJson(name) });
    for (const name of strange) ask({ about: "refused", name, problem: texts.taking.notWorkflow(name) });
    let made: Choice | undefined;
    for (const { name, graph } of graphs) made = (await addGraph(graph, name, false, false)) ?? made;
    const [first] = media;
    if (first && files.length === 1 && isDesk) return offerCarried(first);
    if (first) put(media, made ?? chosen);
    if (files.length > left.length) {
      if (left.length) toast({ text: texts.taking.left(someOf(left)), tone: "bad" });
    } else toast({ text: texts.taking.cannotAny(someOf(left)), tone: "bad" });
  };
  const take = (files: readonly File[]) => void takeAll(files).catch(toastProblem);

  const newest = useRef(take);
  newest.current = take;
  useDropped((files) => newest.current(files.map((each) => each.file)));
  useEffect(() => {
    const pasted = (event: ClipboardEvent) => {
      const files = [...(event.clipboardData?.files ?? [])];
      if (!files.length) return;
      event.preventDefault();
      newest.current(files);
    };
    addEventListener("paste", pasted);
    return () => removeEventListener("paste", pasted);
  }, []);

  const dialog = question && (
    <Dialog
      isOpen
      onClose={close}
      title={
        question.about === "carried" ? texts.taking.carries(question.file.name) : texts.taking.notAdded(question.name)
      }
      about={question.about === "carried" ? texts.taking.carriesAbout : question.problem}
      actions={
        question.about === "carried" ? (
          <>
            <Button onClick={close}>{common.cancel}</Button>
            <Button
              onClick={() => {
                close();
                putStored(question.id, typeOf(question.file));
              }}
            >
              {texts.taking.asInput}
            </Button>
            <Button
              look="primary"
              isBusy={isBusy}
              onClick={() => addAsked(question.graph, question.file.name, false, true)}
            >
              {texts.taking.again}
            </Button>
          </>
        ) : (
          <>
            <Button onClick={close}>{common.close}</Button>
            {question.about === "missing" && (
              <Button
                look="primary"
                isBusy={isBusy}
                onClick={() => addAsked(question.graph, question.name, true, question.carried)}
              >
                {texts.taking.anyway}
              </Button>
            )}
          </>
        )
      }
    >
      {question.about === "missing" && (
        <>
          <ul className={styles.missing}>
            {question.missing.map((each) => (
              <li key={`${each.kind} ${each.name}`}>
                <code>{each.name}</code>
                <span>{texts.plan.kinds[each.kind] ?? each.kind}</span>
              </li>
            ))}
          </ul>
          <p className={styles.advice}>{texts.taking.anywayAdvice}</p>
        </>
      )}
    </Dialog>
  );
  return { take, dialog };
}

const MOST_NAMED = 3;
const someOf = (names: readonly string[]): string =>
  [
    ...names.slice(0, MOST_NAMED),
    ...(names.length > MOST_NAMED ? [texts.taking.andMore(names.length - MOST_NAMED)] : []),
  ].join(", ");

/** The values that made a picture, seeds included; of files it has only names. */
function asItWas(made: Workflow, name: string, complain: Wanted["complain"]): void {
  const seeds = made.properties.filter((each) => each.type === "number" && isSeed(each) && each.default_value !== null);
  changeDraft(made.slug, (draft) => ({
    ...draft,
    texts: { ...draft.texts, ...Object.fromEntries(seeds.map((each) => [each.key, String(each.default_value)])) },
  }));
  const lacking = made.properties.filter((each) => isFile(each) && each.required);
  if (lacking.length)
    complain(made.slug, Object.fromEntries(lacking.map((each) => [each.key, texts.taking.lacks(name)])));
}
