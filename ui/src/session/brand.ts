// How the operator presents the server: name, logo, color and legal pages.

import { useQuery } from "@tanstack/react-query";
import { useEffect } from "react";
import { entry } from "@/api/queries";
import type { Studio } from "@/api/types";
import { setSiteName } from "@/lib/document-title";
import { common } from "@/texts/common";

const NONE: Studio = { name: null, logo_url: null, color: null, imprint_url: null, terms_url: null };

export const useBrand = (): Studio => useQuery(entry).data?.studio ?? NONE;

/** Sets the color of the app and the name in the title of its tabs. */
export function useBrandedApp(): void {
  const { name, color } = useBrand();
  useEffect(() => setSiteName(name ?? common.name), [name]);
  useEffect(() => {
    const root = document.documentElement;
    root.toggleAttribute("data-branded", color !== null);
    if (color === null) return;
    root.style.setProperty("--brand", color);
    root.style.setProperty("--on-brand", isLight(color) ? "#14161b" : "#ffffff");
  }, [color]);
}

/** Whether dark text has more contrast on a color than white text, by the formula of WCAG. */
export function isLight(color: string): boolean {
  const [red = 0, green = 0, blue = 0] = [1, 3, 5].map((at) => {
    const part = Number.parseInt(color.slice(at, at + 2), 16) / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179;
}
