import { AudioLines, FileText, Images } from "lucide-react";
import { type RefObject, useEffect, useRef, useState } from "react";
import { here } from "@/api/client";
import type { QueueEntry, QueueItem } from "@/api/types";
import { Poster } from "@/kit/Poster";
import { common } from "@/texts/common";
import { queue as texts } from "@/texts/queue";
import styles from "./EntryTiles.module.css";
import { FailedMark } from "./FailedMark";
import { tilesThatFit } from "./rules";

interface EntryTilesProps {
  entry: QueueEntry;
  openJob: string | undefined;
  onOpen: (item: QueueItem) => void;
}

/** A small picture of each item, or its status if there is none yet. */
export function EntryTiles(props: EntryTilesProps) {
  return props.entry.is_batch ? <BatchTiles {...props} /> : <JobTiles entry={props.entry} />;
}

function JobTiles({ entry }: { entry: QueueEntry }) {
  const [item] = entry.items;
  const Icon = entry.kind === "audio" ? AudioLines : entry.kind === "text" ? FileText : Images;
  return (
    <span className={styles.pair}>
      {item?.input_poster_url && <Picture url={item.input_poster_url} />}
      {item?.poster_url ? (
        <span className={styles.video}>
          <Picture url={item.poster_url} />
          <HoverPreview url={item.preview_url} />
        </span>
      ) : (
        <span className={styles.placeholder} data-status={item?.status}>
          {item?.status === "failed" ? <FailedMark error={item.error} /> : <Icon aria-hidden />}
        </span>
      )}
    </span>
  );
}

const MAX_TILES = 36;
/** Batches up to these sizes get large or medium tiles in one row. Larger ones get small tiles in two rows. */
const MAX_LARGE = 6;
const MAX_MEDIUM = 8;
const TILE_PX = { l: 50, m: 38, s: 26 };

function BatchTiles({ entry, openJob, onOpen }: EntryTilesProps) {
  const strip = useRef<HTMLSpanElement>(null);
  const width = useWidth(strip);
  const size = entry.total <= MAX_LARGE ? "l" : entry.total <= MAX_MEDIUM ? "m" : undefined;
  const fitting = width === null ? MAX_TILES : tilesThatFit(entry.total, width, TILE_PX[size ?? "s"], size ? 1 : 2);
  const shown = entry.items.slice(0, Math.min(fitting, MAX_TILES));
  const rest = entry.total - shown.length;
  return (
    <span ref={strip} className={styles.tiles} data-size={size}>
      {shown.map((item) => (
        <Tile
          key={item.item_no}
          item={item}
          isOpen={item.id === openJob}
          showsInput={size !== undefined}
          onOpen={onOpen}
        />
      ))}
      {rest > 0 && <span className={styles.more}>{texts.moreItems(rest)}</span>}
    </span>
  );
}

interface TileProps {
  item: QueueItem;
  isOpen: boolean;
  /** Shows the input in the corner of the output. */
  showsInput: boolean;
  onOpen: (item: QueueItem) => void;
}

function Tile({ item, isOpen, showsInput, onOpen }: TileProps) {
  const url = item.poster_url ?? item.input_poster_url;
  return (
    <button
      type="button"
      // the arrow keys go through the items
      tabIndex={-1}
      className={styles.tile}
      data-status={item.status}
      data-has-input={item.input_poster_url && !item.poster_url ? true : undefined}
      aria-pressed={isOpen}
      aria-label={texts.itemNamed(item.item_no + 1, common.status[item.status] ?? item.status, item.error)}
      onClick={() => onOpen(item)}
    >
      {url && <Poster url={url} loading="lazy" />}
      {item.status === "failed" && <FailedMark error={item.error} />}
      <HoverPreview url={item.preview_url} />
      {showsInput && item.poster_url && item.input_poster_url && (
        <Poster className={styles.inset} url={item.input_poster_url} loading="lazy" />
      )}
    </button>
  );
}

const Picture = ({ url }: { url: string }) => (
  <Poster className={styles.picture} url={url} loading="lazy">
    <span className={styles.placeholder}>
      <Images aria-hidden />
    </span>
  </Poster>
);

/** Plays a short preview over the poster while the pointer is over it. */
function HoverPreview({ url }: { url: string | null }) {
  const [isOver, setOver] = useState(false);
  if (!url) return null;
  return (
    <span
      className={styles.preview}
      data-preview
      onPointerEnter={() => setOver(true)}
      onPointerLeave={() => setOver(false)}
      aria-hidden
    >
      {isOver && <video src={here(url)} autoPlay muted loop playsInline onError={() => setOver(false)} />}
    </span>
  );
}

function useWidth(element: RefObject<HTMLElement | null>): number | null {
  const [width, setWidth] = useState<number | null>(null);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => entry && setWidth(entry.contentRect.width));
    if (element.current) observer.observe(element.current);
    return () => observer.disconnect();
  }, [element]);
  return width;
}
