import type { LucideIcon } from "lucide-react";
import type { ComponentProps, ReactNode } from "react";
import styles from "./Button.module.css";
import { classes } from "./classes";
import { Tooltip } from "./Tooltip";

export interface ButtonLook {
  look?: "plain" | "primary" | "quiet" | "danger";
  size?: "small" | "medium" | "large";
  isWide?: boolean;
}

export const buttonClass = (
  { look = "plain", size = "medium", isWide = false }: ButtonLook,
  ...more: string[]
): string =>
  classes(
    styles.button,
    look !== "plain" && styles[look],
    size !== "medium" && styles[size],
    isWide && styles.wide,
    ...more,
  );

interface ButtonProps extends ComponentProps<"button">, ButtonLook {
  icon?: LucideIcon;
  /** Shows a spinner and disables the button. */
  isBusy?: boolean;
  children?: ReactNode;
}

export function Button({
  look,
  size,
  isWide,
  icon: Icon,
  isBusy = false,
  children,
  className,
  disabled,
  ...rest
}: ButtonProps) {
  return (
    <button
      type="button"
      {...rest}
      className={buttonClass(
        { ...(look && { look }), ...(size && { size }), ...(isWide && { isWide }) },
        className ?? "",
      )}
      disabled={disabled || isBusy}
      aria-busy={isBusy || undefined}
    >
      {isBusy ? <span className={styles.spin} /> : Icon && <Icon aria-hidden />}
      {children}
    </button>
  );
}

interface IconButtonProps extends Omit<ButtonProps, "icon" | "children" | "isWide"> {
  icon: LucideIcon;
  /** Accessible name and tooltip. */
  name: string;
  keys?: string;
  isPressed?: boolean;
}

export function IconButton({
  icon: Icon,
  name,
  keys,
  look = "quiet",
  size,
  isPressed,
  isBusy,
  className,
  disabled,
  ...rest
}: IconButtonProps) {
  return (
    <Tooltip text={name} {...(keys && { keys })}>
      <button
        type="button"
        {...rest}
        aria-label={name}
        aria-pressed={isPressed}
        disabled={disabled || isBusy}
        className={buttonClass(
          { look, ...(size && { size }) },
          classes(styles.icon, isPressed && styles.pressed, className),
        )}
      >
        {isBusy ? <span className={styles.spin} /> : <Icon aria-hidden />}
      </button>
    </Tooltip>
  );
}
