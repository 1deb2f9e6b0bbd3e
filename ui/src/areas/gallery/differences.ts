// Differences between the inputs of outputs.

import type { InputValue } from "@/api/types";

export interface Difference {
  label: string;
  /** One per output; empty if it has no such value. */
  values: string[];
}

const MOST = 12;

/** Compares as text: 64-bit seeds stay exact. */
export function findDifferences(
  made: readonly (readonly Pick<InputValue, "key" | "label" | "value">[])[],
): Difference[] {
  const labels = new Map(made.flatMap((inputs) => inputs.map(({ key, label }) => [key, label] as const)));
  const found = [...labels].map(([key, label]) => ({
    label,
    values: made.map((inputs) => String(inputs.find((each) => each.key === key)?.value ?? "")),
  }));
  return found.filter(({ values }) => new Set(values).size > 1).slice(0, MOST);
}
