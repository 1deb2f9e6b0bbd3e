import { duration } from "@/texts/common";

export const clockTime = new Intl.DateTimeFormat("en", {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hour12: false,
});
const dayAndTime = new Intl.DateTimeFormat("en", {
  day: "numeric",
  month: "short",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hour12: false,
});
/** Day and time, or null. */
export const formatTime = (at: string | null) => (at ? dayAndTime.format(new Date(at)) : null);
/** The time between two dates, or null while one is unknown. */
export const formatBetween = (from: string | null, to: string | null) =>
  from && to ? duration(Math.max(0, (Date.parse(to) - Date.parse(from)) / 1000)) : null;
