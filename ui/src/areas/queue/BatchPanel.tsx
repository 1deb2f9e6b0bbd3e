import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { FileQuestion, Images } from "lucide-react";
import { memo, useCallback, useEffect, useRef, useState } from "react";
import { batchItems, batch as batchQuery, job as jobQuery } from "@/api/queries";
import type { QueueItem } from "@/api/types";
import { VERB_ICONS } from "@/areas/job/Actions";
import { nameOfVerb, type useDoing } from "@/areas/job/doing";
import { Button, buttonClass, EmptyState, ErrorCard, Heading, Progress, Skeleton } from "@/kit";
import { Poster } from "@/kit/Poster";
import { common, duration } from "@/texts/common";
import { job as jobTexts } from "@/texts/job";
import { queue as texts } from "@/texts/queue";
import styles from "./queue.module.css";
import { activeOf, type Counts, doneOf, partsOf, type Subject, verbsOf } from "./rules";

const AT_FIRST = 48;

interface BatchPanelProps {
  id: string;
  /** The item that is open. */
  job: string | undefined;
  /** As the list has them: what was only fetched waits. */
  counts: Counts | undefined;
  doing: ReturnType<typeof useDoing>;
  onItem: (item: QueueItem) => void;
}

/** A batch beside the list: how far it is, what can be done with it, and all its items. */
export function BatchPanel({ id, job, counts: listed, doing, onItem }: BatchPanelProps) {
  const { data: batch, error } = useQuery(batchQuery(id));
  const { data, hasNextPage, fetchNextPage, isFetchingNextPage } = useInfiniteQuery(batchItems(id));
  // as many as one sees: who goes through the list by keys waits for no others
  const [shown, setShown] = useState({ id, most: AT_FIRST });
  const most = shown.id === id ? shown.most : AT_FIRST;
  const items = data?.pages.flatMap((each) => each.items) ?? [];
  // all items run the same workflow: the first tells whether it has a seed
  const { data: first } = useQuery({ ...jobQuery(items[0]?.id ?? ""), enabled: items.length > 0 });
  const newest = useRef(onItem);
  newest.current = onItem;
  const onOpen = useCallback((item: QueueItem) => newest.current(item), []);
  if (error) return <EmptyState icon={FileQuestion} title={jobTexts.gone} text={jobTexts.goneAdvice} />;
  if (!batch) return <Skeleton height={160} />;
  const counts = listed ?? batch.counts;
  const subject: Subject = {
    id,
    isBatch: true,
    status: "",
    counts,
    hasSeed: (first?.seed ?? null) !== null,
  };
  const counted = Object.entries(counts)
    .filter(([, each]) => each)
    .map(([status, each]) => `${each} ${(common.status[status] ?? status).toLowerCase()}`);
  const left = batch.expected_seconds;
  return (
    <section className={styles.batch}>
      {batch.held && (
        <ErrorCard
          tone="warn"
          title={batch.held}
          actions={
            <Button look="primary" onClick={() => void doing.doVerb("resume", subject)}>
              {texts.resumeAll}
            </Button>
          }
        />
      )}
      <Progress parts={partsOf(counts, batch.total)} name={texts.batch.progress} />
      <p className={styles.counted}>
        {[
          texts.doneOf(doneOf(counts), batch.total),
          ...counted,
          left !== null && activeOf(counts) ? texts.left(duration(left)) : null,
        ]
          .filter(Boolean)
          .join(" · ")}
      </p>
      <div className={styles.verbs}>
        {verbsOf(subject).map((verb) => (
          <Button
            key={verb}
            size="small"
            icon={VERB_ICONS[verb]}
            look={verb === "delete" || verb === "cancel" ? "quiet" : "plain"}
            onClick={() => void doing.doVerb(verb, subject)}
          >
            {(job && texts.verbs.ofBatch[verb]) || nameOfVerb(verb, subject)}
          </Button>
        ))}
        {(batch.counts.completed ?? 0) > 0 && (
          <Link to="/gallery" search={{ batch: id }} className={buttonClass({ size: "small" })}>
            <Images aria-hidden />
            {texts.batch.toGallery}
          </Link>
        )}
      </div>
      <Heading>{texts.batch.items}</Heading>
      <ol className={styles.items}>
        {items.slice(0, most).map((item) => (
          <Item key={item.item_no} item={item} isOpen={item.id === job} onOpen={onOpen} />
        ))}
      </ol>
      {most < items.length && <Further onSeen={() => setShown({ id, most: most + AT_FIRST })} />}
      {most >= items.length && hasNextPage && (
        <Button size="small" isBusy={isFetchingNextPage} onClick={() => void fetchNextPage()}>
          {texts.batch.moreItems}
        </Button>
      )}
    </section>
  );
}

/** Tells when one has come to the end of what is shown. */
function Further({ onSeen }: { onSeen: () => void }) {
  const mark = useRef<HTMLSpanElement>(null);
  const newest = useRef(onSeen);
  newest.current = onSeen;
  useEffect(() => {
    // each look tells where it stands: it is still in sight when too few came
    const seen = new IntersectionObserver(([entry]) => entry?.isIntersecting && newest.current());
    if (mark.current) seen.observe(mark.current);
    return () => seen.disconnect();
  });
  return <span ref={mark} className={styles.further} />;
}

/** Of a large batch there are hundreds: one is drawn anew only when it has changed. */
const Item = memo(function Item(props: { item: QueueItem; isOpen: boolean; onOpen: (item: QueueItem) => void }) {
  const { item, isOpen, onOpen } = props;
  const url = item.poster_url ?? item.input_poster_url;
  return (
    <li>
      <button
        type="button"
        className={styles.item}
        data-status={item.status}
        aria-pressed={isOpen}
        aria-label={texts.itemNamed(item.item_no + 1, common.status[item.status] ?? item.status)}
        onClick={() => onOpen(item)}
      >
        {url && <Poster url={url} loading="lazy" />}
        <span>{item.item_no + 1}</span>
      </button>
    </li>
  );
});
