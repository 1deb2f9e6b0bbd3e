import type { MouseEvent } from "react";

/** A click without any key held: of what is no click. */
export const plain = { shiftKey: false, ctrlKey: false, metaKey: false, detail: 1 } as MouseEvent;
