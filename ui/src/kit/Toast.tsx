import { CircleAlert, CircleCheck, Info, X } from "lucide-react";
import { Toast as Radix } from "radix-ui";
import { useSyncExternalStore } from "react";
import { sentence } from "@/api/problem";
import { common } from "@/texts/common";
import { Button, IconButton } from "./Button";
import styles from "./Toast.module.css";

export interface ToastGiven {
  text: string;
  tone?: "info" | "good" | "bad";
  action?: { name: string; run: () => void };
  /** What it is about: a newer one takes the place of what was said of the same. */
  topic?: string;
  /** Done when it goes, unless its action was taken. */
  onGone?: () => void;
}

interface Shown extends ToastGiven {
  id: number;
}

const MOST = 4;
const READ_MS = 6000;
let shown: readonly Shown[] = [];
let last = 0;
const watching = new Set<() => void>();

function change(next: readonly Shown[]): void {
  shown = next;
  for (const each of watching) each();
}

/** Say something in the corner. The same text twice is shown once. */
export function toast(given: ToastGiven | string): void {
  const found = typeof given === "string" ? { text: given } : given;
  last += 1;
  // what can still be taken back stands by itself
  const isSame = (each: Shown) =>
    (!each.onGone && each.text === found.text) || (each.topic !== undefined && each.topic === found.topic);
  const before = shown;
  change([...shown.filter((each) => !isSame(each)), { ...found, id: last }].slice(-MOST));
  letGo(last);
  for (const each of before) if (!shown.includes(each)) each.onGone?.();
}

export const toasts = (): readonly ToastGiven[] => shown;

export function closeToast(id: number): void {
  const found = shown.find((each) => each.id === id);
  change(shown.filter((each) => each.id !== id));
  found?.onGone?.();
}

/** Its action is taken: with that it is over. */
export function takeAction(id: number): void {
  const found = shown.find((each) => each.id === id);
  change(shown.filter((each) => each.id !== id));
  found?.action?.run();
}

const timers = new Map<number, ReturnType<typeof setTimeout>>();

/** Somebody is at it: it stays. Each has a time of its own: one that is gone holds no other. */
export function hold(id: number): void {
  clearTimeout(timers.get(id));
  timers.delete(id);
}

export function letGo(id: number): void {
  hold(id);
  const { tone, onGone } = shown.find((each) => each.id === id) ?? {};
  const end = () => {
    timers.delete(id);
    // what nobody saw is not over; what was to be done meanwhile is
    if (document.hidden && !onGone) document.addEventListener("visibilitychange", () => letGo(id), { once: true });
    else closeToast(id);
  };
  timers.set(id, setTimeout(end, tone === "bad" ? READ_MS * 2 : READ_MS));
}

/** The same of what was thrown; for `.catch` and `onError`. */
export const toastProblem = (thrown: unknown): void => toast({ text: sentence(thrown), tone: "bad" });

const ICONS = { info: Info, good: CircleCheck, bad: CircleAlert };

export function Toasts() {
  const all = useSyncExternalStore(
    (listener) => {
      watching.add(listener);
      return () => void watching.delete(listener);
    },
    () => shown,
  );
  return (
    <Radix.Provider swipeDirection="right" duration={Number.POSITIVE_INFINITY}>
      {all.map(({ id, text, tone = "info", action }) => {
        const Icon = ICONS[tone];
        return (
          <Radix.Root
            key={id}
            className={styles.toast}
            data-tone={tone}
            type={tone === "bad" ? "foreground" : "background"}
            onOpenChange={(open) => !open && closeToast(id)}
            onPointerEnter={() => hold(id)}
            onPointerLeave={() => letGo(id)}
            onFocus={() => hold(id)}
            onBlur={() => letGo(id)}
          >
            <Icon className={styles.icon} aria-hidden />
            <Radix.Description className={styles.text}>{text}</Radix.Description>
            {action && (
              <Radix.Action asChild altText={action.name}>
                <Button size="small" onClick={() => takeAction(id)}>
                  {action.name}
                </Button>
              </Radix.Action>
            )}
            <Radix.Close asChild>
              <IconButton icon={X} name={common.close} size="small" />
            </Radix.Close>
          </Radix.Root>
        );
      })}
      <Radix.Viewport className={styles.viewport} />
    </Radix.Provider>
  );
}
