import styles from "./Sparkline.module.css";

interface SparklineProps {
  values: readonly number[];
  /** The top of the scale, unless a value is higher. */
  maximum?: number;
  name: string;
}

const [WIDTH, HEIGHT] = [100, 24];

/** A line chart of the size of a word. */
export function Sparkline({ values, maximum, name }: SparklineProps) {
  const top = Math.max(maximum ?? 0, ...values, 1e-9);
  const step = WIDTH / Math.max(1, values.length - 1);
  const points = values.map(
    (each, index) => `${(index * step).toFixed(2)},${(HEIGHT - (each / top) * HEIGHT).toFixed(2)}`,
  );
  return (
    <svg
      className={styles.spark}
      viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
      preserveAspectRatio="none"
      role="img"
      aria-label={name}
    >
      <polygon
        points={`0,${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}`}
        fill="var(--tone-soft, var(--accent-soft))"
      />
      <polyline
        points={points.join(" ")}
        fill="none"
        stroke="var(--tone, var(--accent))"
        strokeWidth="1.5"
        strokeLinejoin="round"
        vectorEffect="non-scaling-stroke"
      />
    </svg>
  );
}
