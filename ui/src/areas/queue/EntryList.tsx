import { type ReactNode, type Ref, useEffect, useRef } from "react";
import { Heading, Skeleton } from "@/kit";
import { type VirtualHandle, VirtualList } from "@/kit/VirtualList";
import { useLatest } from "@/lib/use-latest";
import { queue as texts } from "@/texts/queue";
import styles from "./EntryList.module.css";
import type { Line } from "./rules";

interface EntryListProps {
  lines: readonly Line[];
  ref: Ref<VirtualHandle>;
  onEnd: () => void;
  renderNow: () => ReactNode;
  children: (line: Line & { kind: "entry" }) => ReactNode;
}

/** The entries of the queue under their headings. */
export function EntryList({ lines, ref, onEnd, renderNow, children }: EntryListProps) {
  return (
    <VirtualList
      ref={ref}
      items={lines}
      keyOf={(line) => line.key}
      height={84}
      gap={8}
      name={texts.list}
      className={styles.list ?? ""}
      onEnd={onEnd}
    >
      {(line, index) => {
        if (line.kind === "now") return renderNow();
        if (line.kind === "entry") return children(line);
        return (
          <div className={styles.heading} data-first={index === 0 || undefined}>
            <Heading>{line.text}</Heading>
          </div>
        );
      }}
    </VirtualList>
  );
}

export const LoadingEntries = () => (
  <div className={styles.loading} role="status" aria-label={texts.loading}>
    <Skeleton height={110} />
    <Skeleton height={76} />
    <Skeleton height={76} />
  </div>
);

/** Reports when the user scrolls back to the top of the list next to it. */
export function TopSentinel({ onTop }: { onTop: () => void }) {
  const element = useRef<HTMLSpanElement>(null);
  const latest = useLatest(onTop);
  useEffect(() => {
    const list = element.current?.parentElement?.querySelector<HTMLElement>('[role="list"]');
    if (!list) return;
    const check = () => list.scrollTop < list.clientHeight && latest.current();
    list.addEventListener("scroll", check, { passive: true });
    return () => list.removeEventListener("scroll", check);
  }, [latest]);
  return <span ref={element} hidden />;
}
