import { job as texts } from "@/texts/job";

export interface Explanation {
  cause: string;
  advice: string;
  details: string | null;
}

/** Splits the error of a job into its cause, advice, and the full details. */
export function explainError(error: string, detail: string | null | undefined): Explanation {
  const [cause = error, ...rest] = splitSentences(error);
  const details = detail && detail !== error ? unwrapDetails(detail) : null;
  const advice = rest.join(" ");
  const known = texts.advice.find(([pattern]) => pattern.test(error) || pattern.test(detail ?? ""));
  return { cause, advice: [advice, known?.[1] ?? (advice ? "" : texts.adviceElse)].filter(Boolean).join(" "), details };
}

/** Splits a text into sentences. */
export const splitSentences = (text: string): string[] =>
  text
    .trim()
    .split(/(?<=[.!?])\s+(?=[A-Z"“])/)
    .filter(Boolean);

/** The readable output of a program. Workers wrap it in JSON, sometimes twice. */
export function unwrapDetails(text: string): string {
  const found = parseObject(text);
  if (!found) return text;
  if (typeof found.raw === "string") return unwrapDetails(found.raw);
  const { traceback, exception_type: type, exception_message: message, ...rest } = found;
  const lines = Array.isArray(traceback) ? `${type}: ${message}\n${traceback.join("")}\n` : "";
  return lines + JSON.stringify(lines ? rest : found, null, 2);
}

/** The error message in a report of a worker. */
export const workerMessage = (text: string): string => String(parseObject(text)?.error_message ?? text);

function parseObject(text: string): Record<string, unknown> | null {
  try {
    const found: unknown = JSON.parse(text);
    return found && typeof found === "object" && !Array.isArray(found) ? (found as Record<string, unknown>) : null;
  } catch {
    return null;
  }
}
