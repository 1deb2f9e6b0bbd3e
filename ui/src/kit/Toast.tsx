import { CircleAlert, CircleCheck, Info, X } from "lucide-react";
import { Toast as Radix } from "radix-ui";
import { sentence } from "@/api/problem";
import { Store, useStore } from "@/lib/store";
import { common } from "@/texts/common";
import { Button, IconButton } from "./Button";
import styles from "./Toast.module.css";

export interface ToastOptions {
  text: string;
  tone?: "info" | "good" | "bad";
  action?: { name: string; run: () => void };
  /** A newer toast with the same topic replaces this one. */
  topic?: string;
  /** Called when the toast closes without its action being taken. */
  onClose?: () => void;
}

interface ShownToast extends ToastOptions {
  id: number;
}

const MAX_TOASTS = 4;
const SHOWN_MS = 6000;
const shown = new Store<readonly ShownToast[]>([]);
const timers = new Map<number, ReturnType<typeof setTimeout>>();
let lastId = 0;

/** Shows a message in the corner. Replaces one with the same text or topic, unless that one can still be undone. */
export function toast(given: ToastOptions | string): void {
  const options = typeof given === "string" ? { text: given } : given;
  lastId += 1;
  const isReplaced = (each: ShownToast) =>
    (!each.onClose && each.text === options.text) || (each.topic !== undefined && each.topic === options.topic);
  const before = shown.get();
  const after = [...before.filter((each) => !isReplaced(each)), { ...options, id: lastId }].slice(-MAX_TOASTS);
  shown.set(after);
  startTimer(lastId);
  for (const each of before) if (!after.includes(each)) each.onClose?.();
}

/** Shows the message of an error; for `.catch` and `onError`. */
export const toastProblem = (thrown: unknown): void => toast({ text: sentence(thrown), tone: "bad" });

export const shownToasts = (): readonly ShownToast[] => shown.get();

function removeToast(id: number): ShownToast | undefined {
  const found = shown.get().find((each) => each.id === id);
  shown.set(shown.get().filter((each) => each !== found));
  return found;
}

export const closeToast = (id: number): void => removeToast(id)?.onClose?.();

/** Runs the action of a toast and closes it. */
export const runToastAction = (id: number): void => removeToast(id)?.action?.run();

/** Keeps a toast open while the user points at it or focuses it. */
export function stopTimer(id: number): void {
  clearTimeout(timers.get(id));
  timers.delete(id);
}

export function startTimer(id: number): void {
  stopTimer(id);
  const { tone, onClose } = shown.get().find((each) => each.id === id) ?? {};
  const expire = () => {
    timers.delete(id);
    // in a hidden tab the user has not seen the message; pending work is done anyway
    if (document.hidden && !onClose)
      document.addEventListener("visibilitychange", () => startTimer(id), { once: true });
    else closeToast(id);
  };
  timers.set(id, setTimeout(expire, tone === "bad" ? SHOWN_MS * 2 : SHOWN_MS));
}

const ICONS = { info: Info, good: CircleCheck, bad: CircleAlert };

export function Toasts() {
  return (
    <Radix.Provider swipeDirection="right" duration={Number.POSITIVE_INFINITY}>
      {useStore(shown).map(({ id, text, tone = "info", action }) => {
        const Icon = ICONS[tone];
        return (
          <Radix.Root
            key={id}
            className={styles.toast}
            data-tone={tone}
            type={tone === "bad" ? "foreground" : "background"}
            onOpenChange={(open) => !open && closeToast(id)}
            onPointerEnter={() => stopTimer(id)}
            onPointerLeave={() => startTimer(id)}
            onFocus={() => stopTimer(id)}
            onBlur={() => startTimer(id)}
          >
            <Icon className={styles.icon} aria-hidden />
            <Radix.Description className={styles.text}>{text}</Radix.Description>
            {action && (
              <Radix.Action asChild altText={action.name}>
                <Button size="small" onClick={() => runToastAction(id)}>
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
