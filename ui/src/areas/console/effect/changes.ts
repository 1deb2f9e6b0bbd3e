import { isSame } from "../catalogue/builder";
import type { Effect } from "../catalogue/queries";

const CHANGEABLE = [
  ...([
    "price_formula",
    "max_credits_cost",
    "max_wait_seconds",
    "max_run_seconds",
    "preview_path",
    "before_path",
  ] as const),
  ...(["description", "category", "position"] as const),
  ...(["name", "workflow_slug", "property_overrides", "credits_cost"] as const),
];

/** Only the changed fields. */
export const changesOf = (before: Effect, edited: Partial<Effect>): Partial<Effect> =>
  Object.fromEntries(
    CHANGEABLE.filter((each) => each in edited && !isSame(edited[each] ?? null, before[each] ?? null)).map((each) => [
      each,
      edited[each] ?? null,
    ]),
  );
