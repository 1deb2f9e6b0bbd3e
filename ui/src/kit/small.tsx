// Small things that say how something is.

import { AlertTriangle, CircleAlert, Info, type LucideIcon, X } from "lucide-react";
import { type ComponentProps, type CSSProperties, type ReactNode, useEffect, useRef } from "react";
import { common, number } from "@/texts/common";
import { classes } from "./classes";
import styles from "./small.module.css";

interface ChipProps {
  icon?: LucideIcon;
  children: ReactNode;
  /** With it, the chip can be taken away. */
  onRemove?: () => void;
}

export function Chip({ icon: Icon, children, onRemove }: ChipProps) {
  return (
    <span className={styles.chip}>
      {Icon && <Icon aria-hidden />}
      {children}
      {onRemove && (
        <button type="button" className={styles.remove} aria-label={common.clear} onClick={onRemove}>
          <X aria-hidden />
        </button>
      )}
    </span>
  );
}

interface FilterChipProps extends Omit<ComponentProps<"button">, "children"> {
  isOn: boolean;
  count?: number | undefined;
  icon?: LucideIcon;
  children: ReactNode;
}

export function FilterChip({ isOn, count, icon: Icon, children, className, ...rest }: FilterChipProps) {
  const button = useRef<HTMLButtonElement>(null);
  // on a phone chips are in a row that scrolls
  useEffect(() => {
    if (isOn) button.current?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [isOn]);
  return (
    <button ref={button} type="button" {...rest} className={classes(styles.chip, className)} aria-pressed={isOn}>
      {Icon && <Icon aria-hidden />}
      {children}
      {count !== undefined && <span className={styles.count}>{number.format(count)}</span>}
    </button>
  );
}

/** `status` as the API says it. */
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

interface ProgressProps {
  /** From 0 to 1; null while it is not known. Or parts in their colours: 11 good and 1 failed is not red. */
  value?: number | null;
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

export function Skeleton({ width = "100%", height = 16 }: { width?: number | string; height?: number | string }) {
  return <span className={styles.skeleton} style={{ width, height }} aria-hidden />;
}

interface CardProps extends ComponentProps<"div"> {
  isPadded?: boolean;
  isSelectable?: boolean;
  isSelected?: boolean;
}

export function Card({ isPadded = true, isSelectable, isSelected, className, ...rest }: CardProps) {
  return (
    <div
      {...rest}
      className={classes(
        styles.card,
        isPadded && styles.padded,
        isSelectable && styles.selectable,
        isSelected && styles.selected,
        className,
      )}
    />
  );
}

interface EmptyStateProps {
  icon: LucideIcon;
  title: string;
  text?: string;
  /** The next step. */
  children?: ReactNode;
}

export function EmptyState({ icon: Icon, title, text, children }: EmptyStateProps) {
  return (
    <div className={styles.empty}>
      <span className={styles.emptyIcon}>
        <Icon aria-hidden strokeWidth={1.6} />
      </span>
      <h2 className={styles.emptyTitle}>{title}</h2>
      {text && <p className={styles.emptyText}>{text}</p>}
      {children && <div className={styles.actions}>{children}</div>}
    </div>
  );
}

interface ErrorCardProps {
  /** What is wrong, in a sentence. */
  title: string;
  /** What to do. */
  children?: ReactNode;
  /** Folded away. */
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

export const Heading = ({ children, ...rest }: ComponentProps<"h2">) => (
  <h2 {...rest} className={styles.heading}>
    {children}
  </h2>
);
