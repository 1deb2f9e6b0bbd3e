import { Fragment, type ReactNode } from "react";
import { breakable } from "./breakable";
import styles from "./Facts.module.css";

/** A list of names and values. Entries without a value are left out. */
export function Facts({ facts }: { facts: readonly (readonly [name: string, value: ReactNode])[] }) {
  return (
    <dl className={styles.facts}>
      {facts
        .filter(([, value]) => value !== null && value !== undefined && value !== false && value !== "")
        .map(([name, value]) => (
          <Fragment key={name}>
            <dt>{name}</dt>
            <dd dir="auto">{typeof value === "string" ? breakable(value) : value}</dd>
          </Fragment>
        ))}
    </dl>
  );
}
