// The entry script. Lets the browser paint the static page before the app loads.

import { prefetch, prefetchPaths } from "@/api/prefetch";

const MAX_WAIT_MS = 200;

// requests do not delay the paint
prefetch(prefetchPaths(location.pathname, location.search, Intl.DateTimeFormat().resolvedOptions().timeZone));

let isStarted = false;
function start(): void {
  if (isStarted) return;
  isStarted = true;
  void import("./main");
}

// after the next frame; hidden tabs have no frames
requestAnimationFrame(() => setTimeout(start));
setTimeout(start, document.visibilityState === "hidden" ? 0 : MAX_WAIT_MS);
