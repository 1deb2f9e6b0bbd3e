import { useEffect } from "react";
import { useLocalStorage } from "@/lib/local-storage";

export const THEMES = ["system", "dark", "light"] as const;
export type Theme = (typeof THEMES)[number];

/** A year. */
const KEPT_SECONDS = 31_536_000;

/** The theme that was chosen, kept in this browser. The server is told, too, which writes it into the page: there is no
 * flash of the other one before the scripts run. */
export function useTheme(): [Theme, (theme: Theme) => void] {
  const [value, set] = useLocalStorage("theme");
  const theme: Theme = value === "dark" || value === "light" ? value : "system";
  useEffect(() => {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    // biome-ignore lint/suspicious/noDocumentCookie: the other way to set one is not there over plain HTTP
    document.cookie = `comfyrelay_theme=${theme}; path=/; max-age=${KEPT_SECONDS}; samesite=lax`;
  }, [theme]);
  return [theme, (next) => set(next === "system" ? null : next)];
}
