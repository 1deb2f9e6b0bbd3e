import { useInfiniteQuery } from "@tanstack/react-query";
import { memo, useCallback, useEffect, useRef, useState } from "react";
import { batchItems } from "@/api/queries";
import type { QueueItem } from "@/api/types";
import { Button } from "@/kit";
import { Poster } from "@/kit/Poster";
import { useLatest } from "@/lib/use-latest";
import { common } from "@/texts/common";
import { queue as texts } from "@/texts/queue";
import styles from "./BatchItems.module.css";
import { FailedMark } from "./FailedMark";

/** Items per step: opening a batch with the keyboard must not wait for hundreds of them. */
const STEP = 48;

interface BatchItemsProps {
  batchId: string;
  openJob: string | undefined;
  onOpen: (item: QueueItem) => void;
}

/** The items of a batch. Give it the key of the batch. */
export function BatchItems({ batchId, openJob, onOpen }: BatchItemsProps) {
  const { data, hasNextPage, fetchNextPage, isFetchingNextPage } = useInfiniteQuery(batchItems(batchId));
  const [limit, setLimit] = useState(STEP);
  const latest = useLatest(onOpen);
  const open = useCallback((item: QueueItem) => latest.current(item), [latest]);
  const items = data?.pages.flatMap((each) => each.items) ?? [];
  return (
    <>
      <ol className={styles.items}>
        {items.slice(0, limit).map((item) => (
          <Item key={item.item_no} item={item} isOpen={item.id === openJob} onOpen={open} />
        ))}
      </ol>
      {limit < items.length && <Sentinel onVisible={() => setLimit(limit + STEP)} />}
      {limit >= items.length && hasNextPage && (
        <Button size="small" isBusy={isFetchingNextPage} onClick={() => void fetchNextPage()}>
          {texts.batch.moreItems}
        </Button>
      )}
    </>
  );
}

/** Reports when the user scrolls to the end of the shown items. */
function Sentinel({ onVisible }: { onVisible: () => void }) {
  const element = useRef<HTMLSpanElement>(null);
  useEffect(() => {
    // observe again after each render: the sentinel may still be visible if too few items were added
    const observer = new IntersectionObserver(([entry]) => entry?.isIntersecting && onVisible());
    if (element.current) observer.observe(element.current);
    return () => observer.disconnect();
  });
  return <span ref={element} className={styles.sentinel} />;
}

interface ItemProps {
  item: QueueItem;
  isOpen: boolean;
  onOpen: (item: QueueItem) => void;
}

/** Memoized: a large batch has hundreds of items. */
const Item = memo(function Item({ item, isOpen, onOpen }: ItemProps) {
  const url = item.poster_url ?? item.input_poster_url;
  return (
    <li>
      <button
        type="button"
        className={styles.item}
        data-status={item.status}
        aria-pressed={isOpen}
        aria-label={texts.itemNamed(item.item_no + 1, common.status[item.status] ?? item.status, item.error)}
        onClick={() => onOpen(item)}
      >
        {url && <Poster url={url} loading="lazy" />}
        {item.status === "failed" && <FailedMark error={item.error} />}
        <span className={styles.number}>{item.item_no + 1}</span>
      </button>
    </li>
  );
});
