// Form state of one workflow: draft, problems, changes.

import { useMemo, useState } from "react";
import { create as texts } from "@/texts/create";
import { changeDraft, type Draft, EMPTY, useDraft } from "./drafts";
import { type Choice, type Input, isFile, primaryOf, promptOf, type Texts } from "./inputs";
import { isCountedByServer, isUneven, jobCount, MAX_VARIATIONS, sweepOf } from "./sweep";
import { validateInput } from "./values";

export interface Form {
  choice: Choice;
  draft: Draft;
  /** Shown problems by field key; `tries` has one, too. */
  problems: Readonly<Record<string, string>>;
  isMany: boolean;
  change: (part: Partial<Draft>) => void;
  setText: (input: Input, text: string) => void;
  setTexts: (texts: Texts) => void;
  /** Sweeps a field with these values, or ends its sweep with null. */
  setSweep: (input: Input, values: string | null) => void;
  reset: (input: Input) => void;
  /** Text in the recalled job; null if no job was recalled. */
  recalledText: (input: Input) => string | null;
  /** Clears the form; returns the undo. */
  clear: () => () => void;
  /** Shows all problems; returns the key of the first field with one. */
  validate: () => string | null;
  setProblems: (problems: Readonly<Record<string, string>>) => void;
}

/** All problems, shown or not. */
export function validateDraft(choice: Choice, draft: Draft): Record<string, string> {
  const found: Record<string, string> = {};
  for (const input of choice.properties) {
    if (isFile(input)) {
      const given = draft.folder !== null && input.is_primary_input ? [] : (draft.files[input.key] ?? []);
      const gone = given.filter((each) => each.isGone);
      if (gone.length) {
        found[input.key] = texts.form.gone(gone.map((each) => each.name));
        continue;
      }
      const has = given.some((each) => !each.problem);
      const isGiven = has || (input.is_primary_input && draft.folder !== null);
      if (input.required && !isGiven) found[input.key] = texts.problems.required;
      continue;
    }
    if (input.key in draft.sweep) {
      if (!draft.sweep[input.key]?.trim()) found[input.key] = texts.problems.noSweep;
      continue;
    }
    const problem = validateInput(input, choice, draft.texts);
    if (problem) found[input.key] = problem;
  }
  const tries = Number(draft.tries);
  if (!Number.isInteger(tries) || tries < 1 || tries > MAX_VARIATIONS)
    found.tries = texts.problems.tries(MAX_VARIATIONS);
  const lists = sweepOf(choice, draft);
  const prompt = promptOf(choice);
  if (prompt && !isCountedByServer(choice, draft) && lists.files.length && isUneven(lists)) {
    found[prompt.key] = texts.form.uneven(lists.files.length, lists.prompts.length);
  }
  return found;
}

/** The first required file input without a file. */
export const missingFileInput = (choice: Choice, draft: Draft): Input | undefined =>
  choice.properties.find(
    (each) =>
      isFile(each) &&
      each.required &&
      !(draft.files[each.key] ?? []).some((given) => !given.problem) &&
      !(each.is_primary_input && draft.folder !== null),
  );

/** Fields whose problems a change clears; a folder belongs to the primary input. */
export const fieldsChangedBy = (choice: Choice, part: Partial<Draft>): string[] => [
  ...Object.keys(part),
  ...Object.keys(part.sweep ?? {}),
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
    const clearProblems = (...keys: string[]) =>
      setShown((before) => ({
        slug,
        problems: Object.fromEntries(Object.entries(before.problems).filter(([key]) => !keys.includes(key))),
      }));
    const setTexts = (next: Texts) => {
      changeDraft(slug, (before) => ({ ...before, texts: { ...before.texts, ...next } }));
      clearProblems(...Object.keys(next));
    };
    const recalledText = (input: Input) => (draft.from ? (draft.from.texts[input.key] ?? null) : null);
    return {
      choice,
      draft,
      problems,
      isMany: isCountedByServer(choice, draft) || jobCount(sweepOf(choice, draft)) > 1,
      change: (part) => {
        change(part);
        clearProblems(...fieldsChangedBy(choice, part));
      },
      setText: (input, text) => setTexts({ [input.key]: text }),
      setTexts,
      setSweep: (input, values) => {
        changeDraft(slug, (before) => {
          const { [input.key]: _ended, ...rest } = before.sweep;
          return { ...before, sweep: values === null ? rest : { ...before.sweep, [input.key]: values } };
        });
        clearProblems(input.key);
      },
      reset: (input) => {
        const was = recalledText(input);
        if (was !== null) return setTexts({ [input.key]: was });
        const { [input.key]: _removed, ...rest } = draft.texts;
        change({ texts: rest });
        clearProblems(input.key);
      },
      recalledText,
      clear: () => {
        const kept = draft;
        changeDraft(slug, () => EMPTY);
        setShown({ slug, problems: {} });
        return () => changeDraft(slug, () => kept);
      },
      validate: () => {
        const found = validateDraft(choice, draft);
        setShown({ slug, problems: found });
        return choice.properties.find((each) => each.key in found)?.key ?? Object.keys(found)[0] ?? null;
      },
      setProblems: (next) => setShown({ slug, problems: next }),
    };
  }, [choice, draft, problems, slug]);
}
