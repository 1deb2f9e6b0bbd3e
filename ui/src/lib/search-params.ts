// Search parameters are plain text: `?q=123` searches for the text "123". No value is quoted.

export type Search = Readonly<Record<string, string>>;

export const parseSearch = (text: string): Record<string, string> => Object.fromEntries(new URLSearchParams(text));

export function stringifySearch(search: Record<string, unknown>): string {
  const given = Object.entries(search).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  // keep lists of ids readable
  return text ? `?${text.replaceAll("%2C", ",")}` : "";
}

/** Builds the `validateSearch` of a route from the names of its parameters. Each is an optional text. */
export const searchFields =
  <K extends string>(...names: readonly K[]) =>
  (given: Record<string, unknown>): { [Name in K]?: string } => {
    const found: { [Name in K]?: string } = {};
    for (const name of names) {
      const value = given[name];
      if (typeof value === "string" && value) found[name] = value;
    }
    return found;
  };

/** Whether the text is a date that exists, such as `2026-11-16`. */
export function isCalendarDay(text: string): boolean {
  const at = new Date(`${text}T00:00:00Z`);
  return !Number.isNaN(at.getTime()) && at.toISOString().slice(0, 10) === text;
}

const galleryFields = searchFields(
  ...(["q", "workflow", "batch", "kind", "mark", "collection", "day"] as const),
  ...(["sort", "by", "open", "sel", "compare", "grid"] as const),
);

/** The parameters of the gallery. An invalid day is dropped. */
export function gallerySearchFields(given: Record<string, unknown>): ReturnType<typeof galleryFields> {
  const { day, ...rest } = galleryFields(given);
  return day && isCalendarDay(day) ? { ...rest, day } : rest;
}

/** Lists, such as `sel`, are comma-separated. */
export const splitList = (text: string | undefined): string[] => (text ? text.split(",").filter(Boolean) : []);
export const joinList = (items: readonly string[]): string | undefined => (items.length ? items.join(",") : undefined);

/** Servers reject URLs with longer lists. */
export const MAX_LIST_IN_URL = 100;

/** Puts a list into the URL if it is short enough. A longer one goes to `state`, for the page to keep. */
export const fitInUrl = (list: string): { url: string; state: string } =>
  splitList(list).length > MAX_LIST_IN_URL ? { url: "", state: list } : { url: list, state: "" };
