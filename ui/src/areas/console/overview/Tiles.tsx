import { Link, type LinkProps, linkOptions } from "@tanstack/react-router";
import { Sparkline } from "@/kit/Sparkline";
import { number } from "@/texts/common";
import { overview as texts } from "@/texts/console-overview";
import type { Overview } from "../queries/overview";
import type { Tone } from "../shared/panels";
import { errorRate, highest, type Range, rates, thinned, type Values } from "./rules";
import styles from "./Tiles.module.css";

interface TileProps {
  name: string;
  value: string;
  aside: string;
  tone: Tone;
  values: Values;
  maximum?: number;
  link: LinkProps;
}

function Tile({ name, value, aside, tone, values, maximum, link }: TileProps) {
  return (
    <Link {...link} className={styles.tile} data-tone={tone}>
      <span className={styles.tileName}>{name}</span>
      <span className={styles.tileValue}>{value}</span>
      <span className={styles.tileAside}>{aside}</span>
      <span className={styles.spark} aria-hidden>
        <Sparkline values={thinned(values)} name={name} {...(maximum && { maximum })} />
      </span>
    </Link>
  );
}

export function Tiles({ found: { now, series, bucket_seconds }, range }: { found: Overview; range: Range }) {
  const rate = errorRate(now.done_hour, now.failed_hour);
  const wait = now.wait_hour_seconds;
  const queued = now.waiting + now.unrunnable;
  const ended = (sums: Values) => rates(sums, range, bucket_seconds).slice(0, -1);
  return (
    <section className={styles.tiles} aria-label={texts.tiles}>
      <Tile
        name={texts.waiting}
        value={number.format(queued)}
        aside={texts.waitingAside(queued, now.unrunnable, now.oldest_wait_seconds)}
        tone={now.unrunnable ? "bad" : "info"}
        values={series.waiting}
        link={linkOptions({ to: "/console/dispatches", search: { status: "queued" } })}
      />
      <Tile
        name={texts.wait}
        value={wait === null ? texts.none : texts.seconds(wait)}
        aside={texts.waitAside}
        tone="accent"
        values={series.wait_seconds}
        link={linkOptions({ to: "/console/dispatches", search: { status: "queued" } })}
      />
      <Tile
        name={texts.done}
        value={number.format(now.done_hour)}
        aside={texts.doneAside(now.running)}
        tone="good"
        values={ended(series.done)}
        link={linkOptions({ to: "/console/dispatches", search: { status: "completed" } })}
      />
      <Tile
        name={texts.failed}
        value={rate === null ? texts.none : texts.percent(rate)}
        aside={texts.failedAside(now.failed_hour)}
        tone={now.failed_hour ? "bad" : "muted"}
        values={ended(series.failed)}
        link={linkOptions({ to: "/console/dispatches", search: { status: "failed" } })}
      />
      <Tile
        name={texts.busy}
        value={texts.busyOf(now.busy, now.slots)}
        aside={texts.busyAside(now.workers_online)}
        tone="good"
        values={series.busy}
        maximum={Math.max(highest(series.slots) ?? 0, now.slots, 1)}
        link={linkOptions({ to: "/console/workers", search: { status: "busy" } })}
      />
      <Tile
        name={texts.tokens}
        value={texts.compact(now.tokens_hour)}
        aside={texts.tokensAside}
        tone="warn"
        values={ended(series.tokens)}
        link={linkOptions({ to: "/console/tenants" })}
      />
    </section>
  );
}
