import type { ComponentProps } from "react";
import styles from "./Card.module.css";
import { classes } from "./classes";

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
