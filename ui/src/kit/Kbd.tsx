import { Fragment } from "react";
import { shownKeys } from "@/app/keyboard";
import { common } from "@/texts/common";
import styles from "./small.module.css";

/** Keys, as `useKeys` writes them. */
export function Kbd({ keys }: { keys: string }) {
  return (
    <span className={styles.keys}>
      {shownKeys(keys).map((step, index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: they never change places
        <Fragment key={index}>
          {index > 0 && <span className={styles.then}>{common.keys.after}</span>}
          {step.map((each) => (
            <kbd key={each} className={styles.kbd}>
              {each}
            </kbd>
          ))}
        </Fragment>
      ))}
    </span>
  );
}
