// Which unit of the list is marked. It moves with every key, so it stands beside the page: only the two cards that
// change are drawn anew, and nothing else before the paint that shows it.

import { useSyncExternalStore } from "react";

export class Cursor {
  private readonly watching = new Set<() => void>();

  constructor(private place?: string) {}

  get at(): string | undefined {
    return this.place;
  }

  readonly set = (id: string | undefined): void => {
    if (id === this.place) return;
    this.place = id;
    for (const each of this.watching) each();
  };

  readonly watch = (listener: () => void) => {
    this.watching.add(listener);
    return () => void this.watching.delete(listener);
  };
}

export const useIsAt = (cursor: Cursor, id: string): boolean =>
  useSyncExternalStore(cursor.watch, () => cursor.at === id);
