import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Columns2, ImagePlus, SlidersHorizontal, Star, TriangleAlert } from "lucide-react";
import { type RefObject, useRef, useState } from "react";
import type { Job } from "@/api/types";
import type { Item } from "@/areas/gallery/item";
import { useItem } from "@/areas/gallery/item-store";
import { aboutJob } from "@/areas/gallery/queries";
import { Tile } from "@/areas/gallery/Tile";
import { ratioOf } from "@/areas/gallery/use-index";
import { jobTitle } from "@/jobs/job";
import { LivePreview } from "@/jobs/LivePreview";
import { describeProgress } from "@/jobs/progress";
import { classes, IconButton } from "@/kit";
import { breakable } from "@/kit/breakable";
import { Progress } from "@/kit/Progress";
import { useLiveEvent } from "@/live";
import { create as texts } from "@/texts/create";
import { gallery as galleryTexts } from "@/texts/gallery";
import styles from "./Results.module.css";
import { changedValues } from "./result-list";
import { useWasVisible } from "./use-was-visible";

/** A running job, with its preview and progress. */
export function RunningCard({ job }: { job: Job }) {
  const [secondsLeft, setSecondsLeft] = useState<number | null>(null);
  useLiveEvent("progress", ({ jobs }) => {
    const found = jobs.find((each) => each.id === job.id);
    if (found) setSecondsLeft(found.expected_seconds ?? null);
  });
  const { value, text } = describeProgress(job.progress, secondsLeft);
  const name = jobTitle(job);
  return (
    <div className={styles.card} data-running={job.id}>
      <Link to="/jobs/$id" params={{ id: job.id }} className={styles.live} aria-label={texts.results.running(name)}>
        <LivePreview id={job.id} name="">
          <span className={styles.noPreview} />
        </LivePreview>
      </Link>
      <Progress value={value} name={texts.results.running(name)} />
      <p className={styles.prompt} title={name}>
        {breakable(name)}
      </p>
      <p className={styles.values}>{text}</p>
    </div>
  );
}

export function FailedCard({ job }: { job: Job }) {
  const name = jobTitle(job);
  return (
    <div className={classes(styles.card, styles.failed)}>
      <Link to="/jobs/$id" params={{ id: job.id }} className={styles.failure}>
        <TriangleAlert aria-hidden />
        <strong>{texts.results.failed}</strong>
        <span>{job.error}</span>
      </Link>
      <p className={styles.prompt} title={name}>
        {breakable(name)}
      </p>
    </div>
  );
}

export interface ResultActions {
  /** Null if there are no values to load, as on a server. */
  onRecall: ((item: Item) => void) | null;
  onStar: (item: Item) => void;
  onSelect: (item: Item) => void;
  onUse: (item: Item) => void;
}

interface ResultCardProps extends ResultActions {
  id: string;
  width: number;
  place: number;
  total: number;
  isSelected: boolean;
  isCurrent: boolean;
  isPlaying: boolean;
}

// Extreme aspect ratios are cropped, so that a row stays readable.
const [MIN_RATIO, MAX_RATIO] = [0.66, 1.9];

/** An output with the values that made it. */
export function ResultCard({ id, width, onRecall, onStar, onSelect, onUse, ...rest }: ResultCardProps) {
  const item = useItem(id);
  const card = useRef<HTMLDivElement>(null);
  const ratio = (item && ratioOf(item) / 100) || 1;
  const height = Math.round(width / Math.min(MAX_RATIO, Math.max(MIN_RATIO, ratio)));
  const { verbs } = galleryTexts;
  return (
    <div ref={card} className={styles.card} data-result={id}>
      <div className={styles.picture} style={{ height }} role="list">
        <Tile id={id} left={0} top={0} width={width} height={height} {...rest} />
      </div>
      {item && (
        <>
          <Values item={item} card={card} />
          <div className={styles.actions}>
            {onRecall && (
              <IconButton
                icon={SlidersHorizontal}
                name={verbs.recall}
                keys="r"
                size="small"
                onClick={() => onRecall(item)}
              />
            )}
            <IconButton
              icon={Star}
              name={item.starred ? verbs.unstar : verbs.star}
              keys="s"
              size="small"
              isPressed={item.starred}
              onClick={() => onStar(item)}
            />
            <IconButton
              icon={Columns2}
              name={verbs.compare}
              keys="x"
              size="small"
              isPressed={rest.isSelected}
              onClick={() => onSelect(item)}
            />
            <IconButton icon={ImagePlus} name={verbs.useAsInput} keys="u" size="small" onClick={() => onUse(item)} />
          </div>
        </>
      )}
    </div>
  );
}

function Values({ item, card }: { item: Item; card: RefObject<HTMLElement | null> }) {
  const isSeen = useWasVisible(card);
  const { data: about } = useQuery({ ...aboutJob(item.job_id), enabled: isSeen });
  const { results } = texts;
  const changed = changedValues(about?.inputs ?? []).map(([name, value]) => results.value(name, value));
  const values = [...(item.seed === null ? [] : [results.seed(String(item.seed))]), ...changed].join(" · ");
  const name = item.prompt ?? item.label ?? item.filename;
  return (
    <>
      <p className={styles.prompt} title={name} dir="auto">
        {breakable(name)}
      </p>
      <p className={styles.values} title={values}>
        {breakable(values)}
      </p>
    </>
  );
}
