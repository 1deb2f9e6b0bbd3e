import { ChartLine } from "lucide-react";
import { useMemo } from "react";
import { EmptyState } from "@/kit";
import { overview as texts } from "@/texts/console-overview";
import type { Overview } from "../queries/overview";
import { Chart } from "./Chart";
import styles from "./Chart.module.css";
import { errorRates, type Range, rates, type Values } from "./rules";

/** Axis steps at whole seconds, minutes and hours. */
const TIMES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 28_800, 86_400];

export function Charts({ found: { now, series, bucket_seconds }, range }: { found: Overview; range: Range }) {
  const at = useMemo(() => series.at.map((each) => Date.parse(each) / 1000), [series.at]);
  const errors = useMemo(() => errorRates(series.done, series.failed), [series.done, series.failed]);
  const { done, failed, tokens } = useMemo(() => {
    const rated = (sums: Values) => rates(sums, range, bucket_seconds);
    return { done: rated(series.done), failed: rated(series.failed), tokens: rated(series.tokens) };
  }, [series.done, series.failed, series.tokens, range, bucket_seconds]);
  const per = texts.per[range] ?? "";
  const whole = (value: number) => texts.compact(value);
  const { chart, line } = texts;
  if (at.length === 0) {
    return <EmptyState icon={ChartLine} title={texts.noSamplesTitle} text={texts.noSamples(now.workers_online > 0)} />;
  }
  const common = { at, range };
  return (
    <section className={styles.charts} aria-label={texts.charts}>
      <Chart
        {...common}
        title={chart.waiting}
        lines={[{ name: line.waiting, values: series.waiting, tone: "info" }]}
        format={whole}
        minTop={4}
      />
      <Chart
        {...common}
        title={chart.wait}
        lines={[{ name: line.wait, values: series.wait_seconds, tone: "accent" }]}
        format={texts.seconds}
        minTop={10}
        steps={TIMES}
      />
      <Chart
        {...common}
        title={chart.throughput(per)}
        lines={[
          { name: line.done, values: done, tone: "good" },
          { name: line.failed, values: failed, tone: "bad", isUnfilled: true },
        ]}
        format={whole}
        minTop={4}
      />
      <Chart
        {...common}
        title={chart.errors}
        lines={[{ name: line.errors, values: errors, tone: "bad" }]}
        format={texts.percent}
        minTop={0.05}
      />
      <Chart
        {...common}
        title={chart.busy}
        lines={[
          { name: line.busy, values: series.busy, tone: "good" },
          { name: line.slots, values: series.slots, tone: "muted", isUnfilled: true },
        ]}
        format={whole}
        minTop={4}
      />
      <Chart
        {...common}
        title={chart.tokens(per)}
        lines={[{ name: line.tokens, values: tokens, tone: "warn" }]}
        format={whole}
        minTop={10}
      />
    </section>
  );
}
