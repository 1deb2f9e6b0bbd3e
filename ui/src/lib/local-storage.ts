// Settings and drafts that this browser remembers.

import { useCallback, useSyncExternalStore } from "react";

const PREFIX = "comfyrelay.";
/** Values that the browser could not store, because storage is off or full. They last until the page is closed. */
const unsaved = new Map<string, string | null>();
const subscribers = new Set<() => void>();

const notify = () => {
  for (const each of subscribers) each();
};
const subscribe = (subscriber: () => void) => {
  subscribers.add(subscriber);
  return () => void subscribers.delete(subscriber);
};

addEventListener("storage", ({ key }) => {
  // another tab saved a newer value
  if (key) unsaved.delete(key.replace(PREFIX, ""));
  notify();
});

export function readLocal(name: string): string | null {
  const value = unsaved.get(name);
  if (value !== undefined) return value;
  try {
    return localStorage.getItem(PREFIX + name);
  } catch {
    return null;
  }
}

export function writeLocal(name: string, value: string | null): void {
  try {
    if (value === null) localStorage.removeItem(PREFIX + name);
    else localStorage.setItem(PREFIX + name, value);
    unsaved.delete(name);
  } catch {
    unsaved.set(name, value);
  }
  notify();
}

/** Reads a value of this tab only. It survives a reload. */
export function readSession(name: string): string | null {
  try {
    return sessionStorage.getItem(PREFIX + name);
  } catch {
    return null;
  }
}

export function writeSession(name: string, value: string): void {
  try {
    sessionStorage.setItem(PREFIX + name, value);
  } catch {
    // callers also write the value that all tabs share
  }
}

/** A stored text and its setter. Changes in other tabs are picked up. */
export function useLocalStorage(name: string): [string | null, (value: string | null) => void] {
  const value = useSyncExternalStore(subscribe, () => readLocal(name));
  const set = useCallback((next: string | null) => writeLocal(name, next), [name]);
  return [value, set];
}
