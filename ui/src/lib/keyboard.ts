// Keyboard shortcuts. Mounted components register theirs; the sheet behind `?` lists all registered shortcuts.

import { useEffect, useSyncExternalStore } from "react";
import { useLatest } from "./use-latest";

export interface KeyAction {
  /** `j`, `mod+k`, `shift+x`, `?`, `Escape`, or a sequence: `g q`. `mod` is ⌘ on a Mac, Ctrl elsewhere. */
  keys: string;
  name: string;
  /** Heading on the sheet. */
  group: string;
  run: (event: KeyboardEvent) => void;
  /** Also fires while the user types, such as `mod+Enter`. */
  whileTyping?: boolean;
  /** Also fires while a dialog or menu is open. */
  overDialogs?: boolean;
  /** Fires before the focused element gets the event: `mod+Enter` would open a focused list. */
  isFirst?: boolean;
  /** Not listed on the sheet. */
  isHidden?: boolean;
}

const SEQUENCE_MS = 1200;
export const isMac = /Mac|iPhone|iPad/.test(navigator.platform);

class Keyboard {
  private entries: (() => readonly KeyAction[])[] = [];
  private readonly subscribers = new Set<() => void>();
  private registered: readonly KeyAction[] = [];
  private previous = "";
  private previousAt = 0;

  /** Registers shortcuts. The newest registration of a key wins. */
  add(actions: () => readonly KeyAction[]): () => void {
    this.entries = [...this.entries, actions];
    this.notify();
    return () => {
      this.entries = this.entries.filter((each) => each !== actions);
      this.notify();
    };
  }

  readonly subscribe = (subscriber: () => void) => {
    // components change their shortcuts without registering again
    this.registered = this.current();
    this.subscribers.add(subscriber);
    return () => void this.subscribers.delete(subscriber);
  };

  readonly all = (): readonly KeyAction[] => this.registered;

  /** Capture phase: runs `isFirst` shortcuts and hides the event from the focused element. */
  readonly onKeyDownCapture = (event: KeyboardEvent): void => {
    if (event.defaultPrevented || event.isComposing) return;
    const found = this.find(keyName(event), isTextInput(event.target));
    if (!found?.isFirst || (isDialogOpen() && !found.overDialogs)) return;
    event.preventDefault();
    event.stopPropagation();
    found.run(event);
  };

  readonly onKeyDown = (event: KeyboardEvent): void => {
    if (event.defaultPrevented || event.isComposing) return;
    const pressed = keyName(event);
    if (!pressed) return;
    const isTyping = isTextInput(event.target);
    const sequence =
      event.timeStamp - this.previousAt < SEQUENCE_MS && this.previous ? `${this.previous} ${pressed}` : "";
    const found = this.find(sequence, isTyping) ?? this.find(pressed, isTyping);
    const isStart = !found && !isTyping && this.current().some((each) => each.keys.startsWith(`${pressed} `));
    this.previous = isStart ? pressed : "";
    this.previousAt = event.timeStamp;
    if (!found) return;
    if (isDialogOpen() && !found.overDialogs) return;
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
    this.registered = this.current();
    for (const each of this.subscribers) each();
  }
}

const isDialogOpen = () => document.querySelector("[data-owns-keys]") !== null;

export const keyboard = new Keyboard();

export function keyName(event: Pick<KeyboardEvent, "key" | "ctrlKey" | "metaKey" | "altKey" | "shiftKey">): string {
  if (["Control", "Meta", "Shift", "Alt", "Dead", "Unidentified"].includes(event.key)) return "";
  const mod = isMac ? event.metaKey : event.ctrlKey;
  if (event.altKey || (isMac ? event.ctrlKey : event.metaKey)) return "";
  const isLetter = event.key.length === 1;
  const key = isLetter ? event.key.toLowerCase() : event.key;
  // `?` needs shift on most keyboards, so shift counts only for letters and named keys
  const shift = event.shiftKey && (!isLetter || /[a-z]/.test(key));
  return `${mod ? "mod+" : ""}${shift ? "shift+" : ""}${key}`;
}

function isTextInput(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  if (target.isContentEditable || target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement)
    return true;
  return target instanceof HTMLInputElement && !["checkbox", "radio", "button", "range"].includes(target.type);
}

/** Registers shortcuts while the component is mounted. */
export function useKeys(actions: readonly KeyAction[]): void {
  const latest = useLatest(actions);
  useEffect(() => keyboard.add(() => latest.current), [latest]);
}

export const useAllKeys = (): readonly KeyAction[] => useSyncExternalStore(keyboard.subscribe, keyboard.all);

const LABELS: Record<string, string> = {
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

/** Labels of the keys to press: one list per step of a sequence. */
export const keyLabels = (keys: string): string[][] =>
  (keys === " " ? [" "] : keys.split(" ")).map((each) =>
    each.split("+").map((key) => LABELS[key] ?? (key.length === 1 ? key.toUpperCase() : key)),
  );
