import type { ReactNode } from "react";
import { common } from "@/texts/common";
import styles from "./Status.module.css";

/** A dot in the color of a job status of the API. */
export function StatusDot({ status }: { status: string }) {
  return <span className={styles.dot} data-status={status} role="img" aria-label={common.status[status] ?? status} />;
}

export function StatusBadge({ status, children }: { status: string; children?: ReactNode }) {
  return (
    <span className={styles.badge} data-status={status}>
      <span className={styles.dot} data-status={status} />
      {children ?? common.status[status] ?? status}
    </span>
  );
}
