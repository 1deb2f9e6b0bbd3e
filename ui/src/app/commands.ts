// What the palette offers: areas, and what the page that is shown can do.

import type { LucideIcon } from "lucide-react";
import { useEffect, useRef, useSyncExternalStore } from "react";

export interface Command {
  id: string;
  name: string;
  /** Its heading in the palette. */
  group: string;
  icon?: LucideIcon;
  /** Shown beside it, as in `useKeys`. */
  keys?: string;
  /** Other words for it. */
  words?: readonly string[];
  run: () => void;
}

let sources: (() => readonly Command[])[] = [];
const watching = new Set<() => void>();
let version = 0;

function change(next: typeof sources): void {
  sources = next;
  version += 1;
  for (const each of watching) each();
}

/** Commands that are offered while the component is shown. */
export function useCommands(commands: readonly Command[]): void {
  const newest = useRef(commands);
  newest.current = commands;
  useEffect(() => {
    const source = () => newest.current;
    change([...sources, source]);
    return () => change(sources.filter((each) => each !== source));
  }, []);
}

export function useAllCommands(): readonly Command[] {
  useSyncExternalStore(
    (listener) => {
      watching.add(listener);
      return () => void watching.delete(listener);
    },
    () => version,
  );
  return sources.flatMap((each) => each());
}
