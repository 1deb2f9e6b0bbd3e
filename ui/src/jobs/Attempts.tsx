import type { AboutJob } from "@/api/types";
import { Heading } from "@/kit";
import { job as texts } from "@/texts/job";
import styles from "./Attempts.module.css";
import { formatBetween, formatTime } from "./dates";
import { workerMessage } from "./errors";
import { shellQuote } from "./rerun";
import section from "./section.module.css";

export function Attempts({ about }: { about: AboutJob }) {
  if (!about.attempts.length) return null;
  return (
    <section className={section.section}>
      <Heading>{texts.attempts}</Heading>
      <ol className={styles.attempts}>
        {about.attempts.map((each, index) => {
          const { argv, exit_code: code, log } = (each.about ?? {}) as Record<string, unknown>;
          return (
            <li key={each.started_at} data-outcome={each.outcome ?? "running"}>
              {/* by position: a paused attempt does not count, so two attempts may have the same number */}
              <strong>{texts.attempt(index + 1)}</strong>
              <span className={section.hint}>
                {[
                  texts.outcome(each.outcome),
                  formatTime(each.started_at),
                  formatBetween(each.started_at, each.ended_at),
                  each.seed === null ? null : texts.seed(String(each.seed)),
                  typeof code === "number" ? texts.exitCode(String(code)) : null,
                ]
                  .filter(Boolean)
                  .join(" · ")}
              </span>
              {each.error && <p className={styles.error}>{workerMessage(each.error)}</p>}
              {Array.isArray(argv) && (
                <details className={section.fold}>
                  <summary>{texts.command}</summary>
                  <pre className={section.code}>{argv.map((word) => shellQuote(String(word))).join(" ")}</pre>
                  {typeof log === "string" && <p className={section.hint}>{texts.fullLog(log)}</p>}
                </details>
              )}
            </li>
          );
        })}
      </ol>
    </section>
  );
}
