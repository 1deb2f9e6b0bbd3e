import { useSyncExternalStore } from "react";

const subscribe = (changed: () => void) => {
  addEventListener("hashchange", changed);
  return () => removeEventListener("hashchange", changed);
};

/** The part of the URL after `#`, which browsers do not send to the server. If a tab
 * already shows the page of a link, opening the link changes only this part and loads nothing. */
export const useFragment = (): string => useSyncExternalStore(subscribe, () => location.hash.slice(1));
