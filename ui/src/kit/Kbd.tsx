import { Fragment } from "react";
import { keyLabels } from "@/lib/keyboard";
import { common } from "@/texts/common";
import styles from "./Kbd.module.css";

/** A shortcut, written as in `useKeys`. */
export function Kbd({ keys }: { keys: string }) {
  return (
    <span className={styles.keys}>
      {keyLabels(keys).map((step, index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: the steps never change order
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
