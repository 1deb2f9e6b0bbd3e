import { workflow as texts } from "@/texts/console-workflows";
import { isScalar, type Property } from "./builder";

/** Problems by field. */
export function validateProperty(property: Property): Partial<Record<keyof Property, string>> {
  const { problems } = texts;
  const found: Partial<Record<keyof Property, string>> = {};
  const { default_value: value, minimum, maximum, step } = property;
  const isNumber = typeof value === "number" || typeof value === "bigint";
  if (property.type === "choice" && !property.choices?.length) found.choices = problems.noChoices;
  if (typeof minimum === "number" && typeof maximum === "number" && minimum > maximum) found.maximum = problems.range;
  if (typeof step === "number" && step <= 0) found.step = problems.step;
  if (property.type === "number" && isNumber) {
    if (typeof minimum === "number" && value < minimum) found.default_value = problems.below;
    if (typeof maximum === "number" && value > maximum) found.default_value = problems.above;
    if (property.is_whole && typeof value === "number" && !Number.isInteger(value))
      found.default_value = problems.whole;
  }
  if (property.type === "choice" && isScalar(value) && property.choices?.length && !property.choices.includes(value))
    found.default_value = problems.notAmong;
  const isSet = property.user_configurable || property.is_primary_input;
  if (!isSet && property.type !== "text" && (value === null || value === undefined))
    found.default_value = problems.noValue;
  return found;
}
