/** `Old Film (v2)` -> `old-film-v2` */
export function slugOf(name: string): string {
  const plain = name
    .normalize("NFKD")
    .replace(/[\u0300-\u036f]/g, "")
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, "-")
    .replace(/^-+|-+$/g, "");
  return plain.slice(0, 100).replace(/-+$/, "") || "workflow";
}

export const isSlug = (text: string): boolean => /^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$/.test(text);
