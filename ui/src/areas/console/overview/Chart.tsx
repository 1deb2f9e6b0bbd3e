import { useEffect, useRef } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { useLatest } from "@/lib/use-latest";
import { overview as texts } from "@/texts/console-overview";
import type { Tone } from "../shared/panels";
import styles from "./Chart.module.css";
import { highest, isolatedPoints, last, type Range, type Values } from "./rules";

export interface Line {
  name: string;
  values: Values;
  tone: Tone;
  /** No fill below the line. */
  isUnfilled?: boolean;
}

interface ChartProps {
  title: string;
  range: Range;
  /** Seconds since 1970. */
  at: readonly number[];
  lines: readonly Line[];
  format: (value: number) => string;
  /** The y axis reaches at least this value. */
  minTop?: number;
  /** Allowed intervals between ticks. */
  steps?: readonly number[];
}

const HEIGHT = 168;
const AXIS = 52;

/** A time series. All charts share the cursor. */
export function Chart(props: ChartProps) {
  // the series and the axes are set at creation: create a new chart when they change
  const key = [props.range, ...props.lines.map((each) => each.name)].join();
  return <Plot key={key} {...props} />;
}

function Plot({ title, range, at, lines, format, minTop = 1, steps }: ChartProps) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const swatches = useRef<(HTMLElement | null)[]>([]);
  const valueElements = useRef<(HTMLElement | null)[]>([]);
  const data = [at, ...lines.map((each) => each.values)] as unknown as uPlot.AlignedData;
  const now = useLatest({ lines, format, range, minTop, steps, data });

  useEffect(() => {
    const element = place.current;
    if (!element) return;
    // read when drawing: the theme may change
    const color = (index: number) => getComputedStyle(swatches.current[index] ?? element).backgroundColor;
    const ink = () => getComputedStyle(element).color;
    const rule = () => getComputedStyle(element).borderTopColor;
    const showValues = (chart: uPlot) => {
      const index = chart.cursor.idx ?? null;
      now.current.lines.forEach((line, number) => {
        const value = index === null ? last(line.values) : (line.values[index] ?? null);
        const target = valueElements.current[number];
        if (target) target.textContent = value === null ? texts.none : now.current.format(value);
      });
    };
    const chart = new uPlot(
      {
        width: element.clientWidth,
        height: HEIGHT,
        padding: [8, 16, 0, 0],
        legend: { show: false },
        cursor: { sync: { key: "overview" }, y: false, drag: { x: false, y: false }, points: { size: 7 } },
        scales: {
          y: { range: (_chart, _low, high) => [0, Math.max(now.current.minTop, (high ?? 0) * 1.15)] },
        },
        axes: [
          {
            stroke: ink,
            grid: { show: false },
            ticks: { show: false },
            font: "11px Inter Variable, system-ui, sans-serif",
            size: 24,
            space: 70,
            values: (_chart, splits) =>
              splits.map((each) => (now.current.range === "week" ? texts.day(each) : texts.clock(each))),
            ...(now.current.range === "week" && { incrs: [86_400, 2 * 86_400, 7 * 86_400] }),
          },
          {
            stroke: ink,
            grid: { stroke: rule, width: 1 },
            ticks: { show: false },
            font: "11px Inter Variable, system-ui, sans-serif",
            size: AXIS,
            space: 28,
            ...(now.current.steps && { incrs: [...now.current.steps] }),
            values: (_chart, splits) => splits.map((each) => now.current.format(each)),
          },
        ],
        series: [
          {},
          ...now.current.lines.map((line, index) => ({
            label: line.name,
            stroke: () => color(index),
            width: 1.75,
            ...(!line.isUnfilled && { fill: () => faded(color(index)) }),
            // a line needs two points: an isolated one is drawn as a dot
            points: {
              show: false,
              size: 5,
              fill: () => color(index),
              filter: () => isolatedPoints(now.current.lines[index]?.values ?? []),
            },
            spanGaps: false,
          })),
        ],
        hooks: { setCursor: [showValues], setData: [showValues], ready: [showValues] },
      },
      now.current.data,
      element,
    );
    plot.current = chart;
    const resizing = new ResizeObserver(() => chart.setSize({ width: element.clientWidth, height: HEIGHT }));
    resizing.observe(element);
    const redraw = () => chart.redraw(false, true);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", redraw);
    const theme = new MutationObserver(redraw);
    theme.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    return () => {
      resizing.disconnect();
      theme.disconnect();
      dark.removeEventListener("change", redraw);
      chart.destroy();
      plot.current = null;
    };
  }, [now]);

  const shown = useRef<readonly Values[]>([]);
  useEffect(() => {
    const series = [at, ...lines.map((each) => each.values)];
    const isSame =
      series.length === shown.current.length && series.every((each, index) => each === shown.current[index]);
    shown.current = series;
    if (!isSame) plot.current?.setData(now.current.data);
  }, [at, lines, now]);

  const summary = lines
    .map((line) => {
      const [end, top] = [last(line.values), highest(line.values)];
      const over = texts.over[range] ?? "";
      return end === null || top === null
        ? texts.emptySummary(line.name, over)
        : texts.summary(line.name, over, format(end), format(top));
    })
    .join("; ");
  return (
    <figure className={styles.chart}>
      <figcaption>
        <span className={styles.chartTitle}>{title}</span>
        {lines.map((line, index) => (
          <span key={line.name} className={styles.key}>
            <span
              className={styles.swatch}
              data-tone={line.tone}
              ref={(found) => {
                swatches.current[index] = found;
              }}
            />
            <span
              className={styles.figure}
              ref={(found) => {
                valueElements.current[index] = found;
              }}
            />{" "}
            {line.name}
          </span>
        ))}
      </figcaption>
      {lines.every((line) => last(line.values) === null) && (
        <p className={styles.noValues} aria-hidden>
          {texts.noValues}
        </p>
      )}
      <div className={styles.plot} ref={place} role="img" aria-label={`${title}: ${summary}`} />
    </figure>
  );
}

const faded = (color: string): string => color.replace(/^rgb\((.*)\)$/, "rgba($1, 0.12)");
