// Commands that the palette offers: the areas, and the actions of the current page.

import type { LucideIcon } from "lucide-react";
import { useEffect } from "react";
import { Store, useStore } from "./store";
import { useLatest } from "./use-latest";

export interface Command {
  id: string;
  name: string;
  /** Heading in the palette. */
  group: string;
  icon?: LucideIcon;
  /** Shortcut to show, written as in `useKeys`. */
  keys?: string;
  /** Synonyms that also match. */
  words?: readonly string[];
  run: () => void;
}

type Source = () => readonly Command[];

const sources = new Store<readonly Source[]>([]);

/** Offers commands while the component is mounted. */
export function useCommands(commands: readonly Command[]): void {
  const latest = useLatest(commands);
  useEffect(() => {
    const source = () => latest.current;
    sources.set([...sources.get(), source]);
    return () => sources.set(sources.get().filter((each) => each !== source));
  }, [latest]);
}

export const useAllCommands = (): readonly Command[] => useStore(sources).flatMap((each) => each());
