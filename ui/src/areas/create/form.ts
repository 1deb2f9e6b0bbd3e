// The form of one workflow: its draft, what is wrong with it, and how it is changed.

import { useMemo, useState } from "react";
import { create as texts } from "@/texts/create";
import { countOf, isUneven, listsOf, MOST_TRIES } from "./combine";
import { changeDraft, type Draft, EMPTY, useDraft } from "./drafts";
import { type Choice, type Input, isFile, primaryOf, problemWith, promptOf, type Texts } from "./rules";

export interface Form {
  choice: Choice;
  draft: Draft;
  /** By the keys of fields, and `tries`: what is shown at them. */
  problems: Readonly<Record<string, string>>;
  isMany: boolean;
  change: (part: Partial<Draft>) => void;
  setText: (input: Input, text: string) => void;
  setTexts: (texts: Texts) => void;
  reset: (input: Input) => void;
  /** What a field had in the job that this began as; null where it began as none. */
  before: (input: Input) => string | null;
  /** Empty it; returns how to have everything back. */
  startOver: () => () => void;
  /** Show what is wrong; returns the key of the first field. */
  complain: () => string | null;
  setProblems: (problems: Readonly<Record<string, string>>) => void;
}

/** All that is wrong, whether it is shown or not. */
export function problemsOf(choice: Choice, draft: Draft): Record<string, string> {
  const found: Record<string, string> = {};
  for (const input of choice.properties) {
    if (isFile(input)) {
      const has = (draft.files[input.key] ?? []).some((each) => !each.problem);
      const isGiven = has || (input.is_primary_input && draft.folder !== null);
      if (input.required && !isGiven) found[input.key] = texts.problems.required;
      continue;
    }
    const problem = problemWith(input, choice, draft.texts);
    if (problem) found[input.key] = problem;
  }
  const tries = Number(draft.tries);
  if (!Number.isInteger(tries) || tries < 1 || tries > MOST_TRIES) found.tries = texts.problems.tries(MOST_TRIES);
  const lists = listsOf(choice, draft);
  const prompt = promptOf(choice);
  if (prompt && draft.folder === null && lists.files.length && isUneven(lists)) {
    found[prompt.key] = texts.form.uneven(lists.files.length, lists.prompts.length);
  }
  return found;
}

/** The file that must be given, and is not. */
export const lackingInput = (choice: Choice, draft: Draft): Input | undefined =>
  choice.properties.find(
    (each) =>
      isFile(each) &&
      each.required &&
      !(draft.files[each.key] ?? []).some((given) => !given.problem) &&
      !(each.is_primary_input && draft.folder !== null),
  );

/** The fields whose problems are over with a change of a draft: a folder is that of the main input. */
export const settledBy = (choice: Choice, part: Partial<Draft>): string[] => [
  ...Object.keys(part),
  ...Object.keys(part.files ?? {}),
  ...("folder" in part ? [primaryOf(choice)?.key ?? ""] : []),
];

export function useForm(choice: Choice): Form {
  const { slug } = choice;
  const draft = useDraft(slug);
  const [shown, setShown] = useState<{ slug: string; problems: Readonly<Record<string, string>> }>({
    slug,
    problems: {},
  });
  const problems = shown.slug === slug ? shown.problems : {};
  return useMemo(() => {
    const change = (part: Partial<Draft>) => changeDraft(slug, (before) => ({ ...before, ...part }));
    const forget = (...keys: string[]) =>
      setShown((before) => ({
        slug,
        problems: Object.fromEntries(Object.entries(before.problems).filter(([key]) => !keys.includes(key))),
      }));
    const setTexts = (next: Texts) => {
      changeDraft(slug, (before) => ({ ...before, texts: { ...before.texts, ...next } }));
      forget(...Object.keys(next));
    };
    const before = (input: Input) => (draft.from ? (draft.from.texts[input.key] ?? null) : null);
    return {
      choice,
      draft,
      problems,
      isMany: draft.folder !== null || countOf(listsOf(choice, draft)) > 1,
      change: (part) => {
        change(part);
        forget(...settledBy(choice, part));
      },
      setText: (input, text) => setTexts({ [input.key]: text }),
      setTexts,
      reset: (input) => {
        const was = before(input);
        if (was !== null) return setTexts({ [input.key]: was });
        const { [input.key]: _gone, ...rest } = draft.texts;
        change({ texts: rest });
        forget(input.key);
      },
      before,
      startOver: () => {
        const kept = draft;
        changeDraft(slug, () => EMPTY);
        setShown({ slug, problems: {} });
        return () => changeDraft(slug, () => kept);
      },
      complain: () => {
        const found = problemsOf(choice, draft);
        setShown({ slug, problems: found });
        return choice.properties.find((each) => each.key in found)?.key ?? Object.keys(found)[0] ?? null;
      },
      setProblems: (next) => setShown({ slug, problems: next }),
    };
  }, [choice, draft, problems, slug]);
}
