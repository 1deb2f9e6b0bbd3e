// What stands behind `?` is plain text: `?q=123` looks for the text "123", and nothing is quoted.

export type Search = Readonly<Record<string, string>>;

export const parseSearch = (text: string): Record<string, string> => Object.fromEntries(new URLSearchParams(text));

export function writeSearch(search: Record<string, unknown>): string {
  const given = Object.entries(search).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  // ids and lists of them stay readable
  return text ? `?${text.replaceAll("%2C", ",")}` : "";
}

/** Makes the `validateSearch` of a route: these words, each a text or not given. */
export const searchOf =
  <K extends string>(...names: readonly K[]) =>
  (given: Record<string, unknown>): { [Name in K]?: string } => {
    const found: { [Name in K]?: string } = {};
    for (const name of names) {
      const value = given[name];
      if (typeof value === "string" && value) found[name] = value;
    }
    return found;
  };

/** Whether it is a day that there is, such as `2026-11-16`. */
export function isDay(text: string): boolean {
  const at = new Date(`${text}T00:00:00Z`);
  return !Number.isNaN(at.getTime()) && at.toISOString().slice(0, 10) === text;
}

const wordsOfGallery = searchOf(
  ...(["q", "workflow", "batch", "kind", "mark", "collection", "day"] as const),
  ...(["sort", "by", "open", "sel", "compare"] as const),
);

/** A day that is none is no filter. */
export function gallerySearch(given: Record<string, unknown>): ReturnType<typeof wordsOfGallery> {
  const { day, ...rest } = wordsOfGallery(given);
  return day && isDay(day) ? { ...rest, day } : rest;
}

/** Lists, such as `sel`, are written with commas. */
export const listed = (text: string | undefined): string[] => (text ? text.split(",").filter(Boolean) : []);
/** Longer ones make addresses that servers refuse. */
export const MOST_LISTED = 100;

/** A list for the address, and the same to be kept in the page where it is too long for that. */
export const fitting = (text: string): { written: string; kept: string } =>
  listed(text).length > MOST_LISTED ? { written: "", kept: text } : { written: text, kept: "" };

export const unlisted = (items: readonly string[]): string | undefined => (items.length ? items.join(",") : undefined);
