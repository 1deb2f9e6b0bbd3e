// The current entry of the list. It changes with every key press, so it is kept outside of React state: only the two
// cards that change render again.

import { useSyncExternalStore } from "react";
import { Store } from "@/lib/store";

export class Cursor extends Store<string | undefined> {}

export const useIsCurrent = (cursor: Cursor, id: string): boolean =>
  useSyncExternalStore(cursor.subscribe, () => cursor.get() === id);
