import type { PublicEffect } from "@/api/types";

/** Effects by category, in the order of the first effect of each; those without a category come last. */
export function byCategory<E extends Pick<PublicEffect, "category">>(
  effects: readonly E[],
): readonly (readonly [string | null, readonly E[]])[] {
  const groups = new Map<string | null, E[]>();
  for (const each of effects) {
    const category = each.category ?? null;
    groups.set(category, [...(groups.get(category) ?? []), each]);
  }
  return [...groups].sort(([a], [b]) => Number(a === null) - Number(b === null));
}

/** Effects whose name, description or category contain all words. */
export function matching<E extends Pick<PublicEffect, "name" | "description" | "category">>(
  effects: readonly E[],
  words: string,
): readonly E[] {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  return effects.filter((each) => {
    const text = [each.name, each.description, each.category].join("\n").toLowerCase();
    return wanted.every((word) => text.includes(word));
  });
}
