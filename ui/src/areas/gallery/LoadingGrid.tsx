import { Skeleton } from "@/kit";
import styles from "./gallery.module.css";

const SHAPES = [1.5, 0.7, 1, 1.8, 0.75, 1.3, 1, 0.7, 1.6, 1.2, 0.8, 1.5, 1, 1.4];

export function LoadingGrid() {
  return (
    <div className={styles.loading} aria-hidden>
      {SHAPES.map((each, at) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: the placeholders never change
        <span key={at} style={{ flex: `${each} 1 ${each * 200}px` }}>
          <Skeleton height="100%" />
        </span>
      ))}
    </div>
  );
}
