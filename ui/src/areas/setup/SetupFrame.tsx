import { Check } from "lucide-react";
import type { ReactNode } from "react";
import { Toasts } from "@/kit";
import { Logo } from "@/kit/Logo";
import { setup as texts } from "@/texts/setup";
import styles from "./SetupFrame.module.css";

export const STEPS = ["admin", "storage", "fleet", "worker", "effect", "job"] as const;
export type Step = (typeof STEPS)[number];

interface SetupFrameProps {
  step?: Step;
  done?: ReadonlySet<Step>;
  onStep?: (step: Step) => void;
  children: ReactNode;
}

export function SetupFrame({ step, done, onStep, children }: SetupFrameProps) {
  return (
    <main className={styles.page}>
      <header className={styles.brand}>
        <Logo size={32} />
        <h1>{texts.title}</h1>
      </header>
      <div className={styles.columns}>
        {step && done && (
          <ol className={styles.steps} aria-label={texts.stepsName}>
            {STEPS.map((each, number) => (
              <li key={each} aria-current={each === step ? "step" : undefined} data-done={done.has(each) || undefined}>
                <button
                  type="button"
                  disabled={!onStep || !done.has(each) || each === "admin"}
                  onClick={() => onStep?.(each)}
                >
                  <span className={styles.number} aria-hidden>
                    {done.has(each) ? <Check /> : number + 1}
                  </span>
                  {texts.steps[each]}
                  {done.has(each) && <span className={styles.hidden}>, {texts.done}</span>}
                </button>
              </li>
            ))}
          </ol>
        )}
        <section className={styles.card}>
          {step && <h2>{texts.steps[step]}</h2>}
          {children}
        </section>
      </div>
      <Toasts />
    </main>
  );
}
