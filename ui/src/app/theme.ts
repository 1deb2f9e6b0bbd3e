import { useEffect } from "react";
import { useLocalStorage } from "@/lib/local-storage";

export const THEMES = ["system", "dark", "light"] as const;
export type Theme = (typeof THEMES)[number];

const ONE_YEAR_SECONDS = 31_536_000;

/** The chosen theme. It is also a cookie, so that the server renders pages in this theme without a flash of another. */
export function useTheme(): [Theme, (theme: Theme) => void] {
  const [value, set] = useLocalStorage("theme");
  const theme: Theme = value === "dark" || value === "light" ? value : "system";
  useEffect(() => {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    // biome-ignore lint/suspicious/noDocumentCookie: the Cookie Store API needs HTTPS
    document.cookie = `comfyrelay_theme=${theme}; path=/; max-age=${ONE_YEAR_SECONDS}; samesite=lax`;
  }, [theme]);
  return [theme, (next) => set(next === "system" ? null : next)];
}
