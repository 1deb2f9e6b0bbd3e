// The keys of the app: who is on the screen registers what it does, and the sheet behind `?` is made from that.

import { useEffect, useRef, useSyncExternalStore } from "react";

export interface KeyAction {
  /** `j`, `mod+k`, `shift+x`, `?`, `Escape`, or one after the other: `g q`. `mod` is ⌘ on a Mac, else Ctrl. */
  keys: string;
  name: string;
  /** Its heading on the sheet. */
  group: string;
  run: (event: KeyboardEvent) => void;
  /** Also while somebody types, such as `mod+Enter`. */
  whileTyping?: boolean;
  /** Also while a dialog or a menu is open. */
  overDialogs?: boolean;
  /** Before what has the focus hears it: a list would open by `mod+Enter`. */
  isFirst?: boolean;
  /** Not on the sheet. */
  isHidden?: boolean;
}

const SEQUENCE_MS = 1200;
export const isMac = /Mac|iPhone|iPad/.test(navigator.platform);

class Keyboard {
  private entries: (() => readonly KeyAction[])[] = [];
  private readonly watching = new Set<() => void>();
  private shown: readonly KeyAction[] = [];
  private before = "";
  private beforeAt = 0;

  /** What is registered last wins. */
  add(actions: () => readonly KeyAction[]): () => void {
    this.entries = [...this.entries, actions];
    this.notify();
    return () => {
      this.entries = this.entries.filter((each) => each !== actions);
      this.notify();
    };
  }

  readonly watch = (listener: () => void) => {
    this.watching.add(listener);
    return () => void this.watching.delete(listener);
  };

  readonly all = (): readonly KeyAction[] => this.shown;

  /** On its way down; what has the focus hears nothing of it then. */
  readonly onKeyDownCapture = (event: KeyboardEvent): void => {
    if (event.defaultPrevented || event.isComposing) return;
    const found = this.find(nameOf(event), types(event.target));
    if (!found?.isFirst || (document.querySelector("[data-owns-keys]") && !found.overDialogs)) return;
    event.preventDefault();
    event.stopPropagation();
    found.run(event);
  };

  readonly onKeyDown = (event: KeyboardEvent): void => {
    if (event.defaultPrevented || event.isComposing) return;
    const pressed = nameOf(event);
    if (!pressed) return;
    const isTyping = types(event.target);
    const sequence = event.timeStamp - this.beforeAt < SEQUENCE_MS && this.before ? `${this.before} ${pressed}` : "";
    const found = this.find(sequence, isTyping) ?? this.find(pressed, isTyping);
    const isStart = !found && !isTyping && this.current().some((each) => each.keys.startsWith(`${pressed} `));
    this.before = isStart ? pressed : "";
    this.beforeAt = event.timeStamp;
    if (!found) return;
    // a dialog has the keyboard to itself
    if (document.querySelector("[data-owns-keys]") && !found.overDialogs) return;
    event.preventDefault();
    found.run(event);
  };

  private find(keys: string, isTyping: boolean): KeyAction | undefined {
    return keys ? this.current().findLast((each) => each.keys === keys && (!isTyping || each.whileTyping)) : undefined;
  }

  private current(): readonly KeyAction[] {
    return this.entries.flatMap((each) => each());
  }

  private notify(): void {
    this.shown = this.current();
    for (const each of this.watching) each();
  }
}

export const keyboard = new Keyboard();

export function nameOf(event: Pick<KeyboardEvent, "key" | "ctrlKey" | "metaKey" | "altKey" | "shiftKey">): string {
  if (["Control", "Meta", "Shift", "Alt", "Dead", "Unidentified"].includes(event.key)) return "";
  const mod = isMac ? event.metaKey : event.ctrlKey;
  if (event.altKey || (isMac ? event.ctrlKey : event.metaKey)) return "";
  const isLetter = event.key.length === 1;
  const key = isLetter ? event.key.toLowerCase() : event.key;
  // `?` needs shift on most keyboards: only with letters and named keys is it a word of its own
  const shift = event.shiftKey && (!isLetter || /[a-z]/.test(key));
  return `${mod ? "mod+" : ""}${shift ? "shift+" : ""}${key}`;
}

function types(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  if (target.isContentEditable || target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement)
    return true;
  return target instanceof HTMLInputElement && !["checkbox", "radio", "button", "range"].includes(target.type);
}

/** Keys that work while the component is shown. */
export function useKeys(actions: readonly KeyAction[]): void {
  const newest = useRef(actions);
  newest.current = actions;
  useEffect(() => keyboard.add(() => newest.current), []);
}

export const useAllKeys = (): readonly KeyAction[] => useSyncExternalStore(keyboard.watch, keyboard.all);

const SHOWN: Record<string, string> = {
  mod: isMac ? "⌘" : "Ctrl",
  shift: isMac ? "⇧" : "Shift",
  Enter: "↵",
  Escape: "Esc",
  ArrowUp: "↑",
  ArrowDown: "↓",
  ArrowLeft: "←",
  ArrowRight: "→",
  " ": "Space",
};

/** How keys are shown: one list for each that is pressed after the other. */
export const shownKeys = (keys: string): string[][] =>
  (keys === " " ? [" "] : keys.split(" ")).map((each) =>
    each.split("+").map((key) => SHOWN[key] ?? (key.length === 1 ? key.toUpperCase() : key)),
  );
