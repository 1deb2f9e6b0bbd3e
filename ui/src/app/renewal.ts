// A session that is over is asked for again, over the page that is open. Whoever asked the server for something waits
// meanwhile, and gets it when there is a session again: nothing that was typed is lost.

import { useSyncExternalStore } from "react";

interface Asked {
  promise: Promise<void>;
  answer: () => void;
}

let asked: Asked | null = null;
const watching = new Set<() => void>();

function become(next: Asked | null): void {
  asked = next;
  for (const each of watching) each();
}

/** Resolves when somebody has signed in again. */
export function askForSession(): Promise<void> {
  if (!asked) {
    let answer = () => {};
    const promise = new Promise<void>((resolve) => {
      answer = resolve;
    });
    become({ promise, answer });
  }
  return asked?.promise ?? Promise.resolve();
}

export function sessionIsBack(): void {
  const before = asked;
  become(null);
  before?.answer();
}

export const useIsAsked = (): boolean =>
  useSyncExternalStore(
    (listener) => {
      watching.add(listener);
      return () => void watching.delete(listener);
    },
    () => asked !== null,
  );
