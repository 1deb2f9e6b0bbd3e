// Formats JSON log lines of a worker.
import { parse, textOf } from "@/api/json";

/** `12:00:01 info worker.registered fleet=home`; other lines stay unchanged. */
export function lineOf(text: string): string {
  let found: unknown;
  try {
    found = parse(text);
  } catch {
    return text;
  }
  if (typeof found !== "object" || found === null) return text;
  const { timestamp, time, level, event, message, ...rest } = found as Record<string, unknown>;
  const head = [clockOf(timestamp ?? time), level, event ?? message].filter(Boolean);
  return [...head, ...Object.entries(rest).map(([name, value]) => `${name}=${textOf(value)}`)].join(" ");
}

const clockOf = (at: unknown): string => {
  const found = typeof at === "number" ? new Date(at * 1000) : new Date(String(at));
  return at === undefined || Number.isNaN(found.getTime()) ? "" : found.toTimeString().slice(0, 8);
};
