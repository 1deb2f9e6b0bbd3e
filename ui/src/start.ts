// The first thing that runs. What the page itself shows is painted before anything else is begun.

import { prefetch, prefetchPaths } from "@/api/prefetch";

const PATIENCE_MS = 200;

let isBegun = false;
function begin(): void {
  if (isBegun) return;
  isBegun = true;
  prefetch(prefetchPaths(location.pathname, location.search, Intl.DateTimeFormat().resolvedOptions().timeZone));
  void import("./main");
}

// after the next frame; a tab that nobody sees has none
requestAnimationFrame(() => setTimeout(begin));
setTimeout(begin, document.visibilityState === "hidden" ? 0 : PATIENCE_MS);
