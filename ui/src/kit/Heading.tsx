import type { ComponentProps } from "react";
import styles from "./Heading.module.css";

export const Heading = ({ children, ...rest }: ComponentProps<"h2">) => (
  <h2 {...rest} className={styles.heading}>
    {children}
  </h2>
);
