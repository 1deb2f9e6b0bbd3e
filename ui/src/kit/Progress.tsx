import type { CSSProperties } from "react";
import { classes } from "./classes";
import styles from "./Progress.module.css";

interface ProgressProps {
  /** From 0 to 1; null while unknown. */
  value?: number | null;
  /** Colored by status, instead of `value`. */
  parts?: { status: string; part: number }[];
  name: string;
}

const percent = (part: number): CSSProperties => ({ width: `${Math.min(1, Math.max(0, part)) * 100}%` });

export function Progress({ value = null, parts, name }: ProgressProps) {
  const done = parts ? parts.reduce((sum, each) => sum + each.part, 0) : value;
  return (
    <span
      className={styles.progress}
      role="progressbar"
      aria-label={name}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={done === null ? undefined : Math.round(Math.min(1, done) * 100)}
    >
      {parts ? (
        parts.map((each) => (
          <span key={each.status} className={styles.part} data-status={each.status} style={percent(each.part)} />
        ))
      ) : value === null ? (
        <span className={classes(styles.part, styles.unknown)} />
      ) : (
        <span className={styles.part} style={percent(value)} />
      )}
    </span>
  );
}
