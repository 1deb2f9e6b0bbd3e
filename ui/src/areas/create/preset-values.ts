import { type Choice, type Input, isFile, type Texts } from "./inputs";

/** The preset key for a field: its own key, or its role (`steps` fits every sampler). */
export function presetKey(values: Readonly<Record<string, unknown>>, input: Input): string | null {
  if (isFile(input)) return null;
  const key = input.key in values ? input.key : (input.role ?? null);
  return key !== null && key in values && isPresetValueValid(input, values[key]) ? key : null;
}

function isPresetValueValid(input: Input, value: unknown): boolean {
  if (input.type === "choice") return input.choices.some((each) => each === value);
  if (input.type !== "number") return typeof value === (input.type === "boolean" ? "boolean" : "string");
  if (typeof value !== "number" && typeof value !== "bigint") return false;
  if (input.is_whole && typeof value === "number" && !Number.isInteger(value)) return false;
  return value >= (input.minimum ?? Number.NEGATIVE_INFINITY) && value <= (input.maximum ?? Number.POSITIVE_INFINITY);
}

/** Field texts from a preset, and the names of values that do not fit. */
export function presetTexts(
  values: Readonly<Record<string, unknown>>,
  choice: Choice,
): { texts: Texts; ignored: string[] } {
  const found: Record<string, string> = {};
  const used = new Set<string>();
  for (const input of choice.properties) {
    const key = presetKey(values, input);
    if (key === null) continue;
    found[input.key] = String(values[key]);
    used.add(key);
  }
  return { texts: found, ignored: Object.keys(values).filter((key) => !used.has(key)) };
}
