import { type LucideIcon, X } from "lucide-react";
import { type ComponentProps, type ReactNode, useEffect, useRef } from "react";
import { common, number } from "@/texts/common";
import styles from "./Chip.module.css";
import { classes } from "./classes";

interface ChipProps {
  icon?: LucideIcon;
  children: ReactNode;
  /** Adds a remove button. */
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
  // on a phone the row of chips scrolls, and the counts insert chips before this one when they arrive
  const hasCount = Boolean(count);
  // biome-ignore lint/correctness/useExhaustiveDependencies: see above
  useEffect(() => {
    if (isOn) button.current?.scrollIntoView({ block: "nearest", inline: "center" });
  }, [isOn, hasCount]);
  return (
    <button ref={button} type="button" {...rest} className={classes(styles.chip, className)} aria-pressed={isOn}>
      {Icon && <Icon aria-hidden />}
      {children}
      {count !== undefined && <span className={styles.count}>{number.format(count)}</span>}
    </button>
  );
}
