// Preview of the script command, validated by the desk.

import { useQuery } from "@tanstack/react-query";
import { useDeferredValue, useMemo } from "react";
import { call } from "@/api/client";
import { Problem, sentence } from "@/api/problem";
import type { Form } from "./form";
import { isPrompt, type Value } from "./inputs";
import { hashQueryKey } from "./queries";
import { isOnePromptPerLine, splitLines } from "./sweep";
import { parseValue, textOf } from "./values";

// Sent even if empty.
const ALWAYS = ["positive", "input_subdir", "template"];

/** Groups each option with its value. */
export function argumentLines(argv: readonly string[]): string[][] {
  const lines: string[][] = [];
  for (const each of argv) {
    const last = lines.at(-1);
    if (!last || each.startsWith("--")) lines.push([each]);
    else last.push(each);
  }
  return lines;
}

/** Form values with the first of several prompts. */
export function previewValues({ choice, draft }: Form): Record<string, Value> {
  const values: Record<string, Value> = {};
  for (const input of choice.properties) {
    const text = textOf(input, choice, draft.texts);
    const first = isPrompt(input) && isOnePromptPerLine(choice, draft) ? (splitLines(text)[0] ?? "") : text;
    const value = parseValue(input, first);
    if (value !== undefined && (value !== "" || ALWAYS.includes(input.key))) values[input.key] = value;
  }
  return values;
}

export interface Command {
  argv: readonly string[] | null;
  /** The preview matches the current form. */
  isShown: boolean;
  problem: string | null;
  errors: Readonly<Record<string, string>>;
}

export function useCommand(form: Form): Command {
  const values = useMemo(() => previewValues(form), [form]);
  const settled = useDeferredValue(values);
  const { data, error, isFetching } = useQuery({
    queryKey: ["command", form.choice.slug, settled],
    queryKeyHashFn: hashQueryKey,
    queryFn: async ({ signal }) =>
      (await call<{ argv: string[] }>("POST", "/api/desk/script/preview", settled, signal)).data.argv,
    enabled: form.choice.isScript,
    retry: false,
    // folders may change
    staleTime: 2000,
  });
  return {
    argv: error ? null : (data ?? null),
    isShown: data !== undefined && !error && !isFetching && values === settled,
    problem: error ? sentence(error) : null,
    errors: error instanceof Problem ? error.errors : {},
  };
}
