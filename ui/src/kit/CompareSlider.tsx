import { type CSSProperties, type ReactNode, useState } from "react";
import { common } from "@/texts/common";
import styles from "./CompareSlider.module.css";
import { classes } from "./classes";

interface CompareSliderProps {
  /** Left of the divider, such as the input. */
  before: ReactNode;
  after: ReactNode;
  beforeName: string;
  afterName: string;
}

/** Two images or videos of the same size on top of each other, with a movable divider. */
export function CompareSlider({ before, after, beforeName, afterName }: CompareSliderProps) {
  const [at, setAt] = useState(50);
  return (
    <div className={styles.compare} style={{ "--at": `${at}%` } as CSSProperties}>
      <div>{after}</div>
      <div className={styles.before}>{before}</div>
      <span className={styles.tag}>{beforeName}</span>
      <span className={classes(styles.tag, styles.tagRight)}>{afterName}</span>
      <input
        type="range"
        className={styles.slider}
        min={0}
        max={100}
        step={0.5}
        value={at}
        aria-label={common.media.divider}
        onChange={(event) => setAt(event.target.valueAsNumber)}
        // a mouse moves the divider without pressing a button
        onPointerMove={(event) => {
          if (event.pointerType !== "mouse") return;
          const box = event.currentTarget.getBoundingClientRect();
          setAt(Math.min(100, Math.max(0, ((event.clientX - box.left) / box.width) * 100)));
        }}
      />
      <span className={styles.line} />
    </div>
  );
}
