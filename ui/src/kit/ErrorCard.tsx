import { AlertTriangle, CircleAlert, Info } from "lucide-react";
import type { ReactNode } from "react";
import { common } from "@/texts/common";
import styles from "./ErrorCard.module.css";

interface ErrorCardProps {
  /** The problem, in one sentence. */
  title: string;
  /** Advice. */
  children?: ReactNode;
  /** Collapsed by default. */
  details?: string | null;
  actions?: ReactNode;
  tone?: "bad" | "warn" | "info";
}

const TONES = { bad: CircleAlert, warn: AlertTriangle, info: Info };

export function ErrorCard({ title, children, details, actions, tone = "bad" }: ErrorCardProps) {
  const Icon = TONES[tone];
  return (
    <div className={styles.error} data-tone={tone} role={tone === "bad" ? "alert" : "status"}>
      <p className={styles.errorTitle}>
        <Icon aria-hidden />
        <span>{title}</span>
      </p>
      {children && <div>{children}</div>}
      {details && (
        <details>
          <summary>{common.details}</summary>
          <pre>{details}</pre>
        </details>
      )}
      {actions && <div className={styles.actions}>{actions}</div>}
    </div>
  );
}
