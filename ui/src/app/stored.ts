import { useSyncExternalStore } from "react";

const PREFIX = "comfyrelay.";
const watching = new Set<() => void>();
addEventListener("storage", ({ key }) => {
  // another tab could write it, and is newer
  if (key) memory.delete(key.replace(PREFIX, ""));
  for (const each of watching) each();
});

/** What a browser does not keep, or has no room for, lasts as long as the page. */
const memory = new Map<string, string | null>();

export function stored(name: string): string | null {
  const here = memory.get(name);
  if (here !== undefined) return here;
  try {
    return localStorage.getItem(PREFIX + name);
  } catch {
    return null;
  }
}

export function store(name: string, value: string | null): void {
  try {
    if (value === null) localStorage.removeItem(PREFIX + name);
    else localStorage.setItem(PREFIX + name, value);
    memory.delete(name);
  } catch {
    memory.set(name, value);
  }
  for (const each of watching) each();
}

/** The same for this tab alone; a reload keeps it. */
export function storedHere(name: string): string | null {
  try {
    return sessionStorage.getItem(PREFIX + name);
  } catch {
    return null;
  }
}

export function storeHere(name: string, value: string): void {
  try {
    sessionStorage.setItem(PREFIX + name, value);
  } catch {
    // the one for all tabs is there
  }
}

/** A text that this browser keeps; other tabs see its changes. */
export function useStored(name: string): [string | null, (value: string | null) => void] {
  const value = useSyncExternalStore(
    (listener) => {
      watching.add(listener);
      return () => void watching.delete(listener);
    },
    () => stored(name),
  );
  return [value, (next) => store(name, next)];
}
