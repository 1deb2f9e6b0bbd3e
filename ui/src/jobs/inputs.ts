import type { InputValue } from "@/api/types";

const MAX_UNFOLDED = 8;
const MAIN_ROLES = ["prompt", "negative_prompt", "seed", "input"];

/** Shows the main and the changed values, and folds the rest: a graph may have hundreds. */
export function sortedValues(inputs: readonly InputValue[]): { shown: InputValue[]; rest: InputValue[] } {
  const given = inputs.filter((each) => each.value !== "" && each.value !== null);
  const isShown = (each: InputValue) =>
    given.length <= MAX_UNFOLDED || each.url !== null || MAIN_ROLES.includes(String(each.role)) || !each.is_default;
  return { shown: given.filter(isShown), rest: given.filter((each) => !isShown(each)) };
}
