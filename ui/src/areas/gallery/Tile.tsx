import { AudioLines, Check, FileText, MessageSquareText, Play, Star, ThumbsDown } from "lucide-react";
import { memo, useEffect, useRef, useState } from "react";
import { here } from "@/api/client";
import { classes } from "@/kit";
import { kindOf } from "@/kit/Media";
import { Unavailable } from "@/kit/Unavailable";
import { useLatest } from "@/lib/use-latest";
import { clock, common } from "@/texts/common";
import { gallery as texts } from "@/texts/gallery";
import type { Item } from "./item";
import { items, useIsMissing, useItem } from "./item-store";
import styles from "./Tile.module.css";

interface TileProps {
  id: string;
  left: number;
  top: number;
  width: number;
  height: number;
  place: number;
  total: number;
  isSelected: boolean;
  isCurrent: boolean;
  isPlaying: boolean;
}

/** Short name of an output. */
export const nameOf = (item: Item): string =>
  item.label ?? item.batch_label ?? item.prompt ?? (item.workflow_name || item.filename);

export const lengthOf = (item: Item): string =>
  item.seconds ? clock(item.seconds) : kindOf(item.mime_type) === "image" ? texts.tile.still : "";

function tileLabel(item: Item): string {
  const { tile, kinds } = texts;
  const about = [kinds[kindOf(item.mime_type)] ?? ""];
  if (item.number > 1) about.push(tile.number(item.number));
  if (item.seconds) about.push(clock(item.seconds));
  if (item.starred) about.push(tile.starred);
  if (item.rejected) about.push(tile.rejected);
  if (item.note) about.push(tile.noted);
  return tile.name(nameOf(item), about);
}

/** The grid handles its events by `data-id`: there are too many tiles for a handler each. */
export const Tile = memo(function Tile({ id, left, top, width, height, ...rest }: TileProps) {
  const { place, total, isSelected, isCurrent, isPlaying } = rest;
  const item = useItem(id);
  const isGone = useIsMissing(id);
  return (
    <div
      role="listitem"
      aria-setsize={total}
      aria-posinset={place + 1}
      className={classes(styles.tile, isSelected && styles.selected, item?.rejected && styles.rejected)}
      data-id={id}
      style={{ width, height, transform: `translate(${left}px, ${top}px)` }}
    >
      <button
        type="button"
        className={styles.open}
        tabIndex={isCurrent ? 0 : -1}
        aria-label={item ? tileLabel(item) : common.loading}
        aria-current={isCurrent || undefined}
        data-open
      >
        {item ? <TileMedia item={item} isPlaying={isPlaying} /> : isGone && <MissingMedia item={undefined} />}
        {item && (
          <span className={styles.caption}>
            <span>{nameOf(item)}</span>
            <small>{lengthOf(item)}</small>
          </span>
        )}
      </button>
      <button
        type="button"
        className={styles.check}
        role="checkbox"
        aria-checked={isSelected}
        aria-label={texts.tile.select(item ? nameOf(item) : texts.tile.unnamed)}
        tabIndex={-1}
        data-check
      >
        <Check aria-hidden strokeWidth={3} />
      </button>
      {item && (item.starred || item.rejected || item.note) && (
        <span className={styles.marks}>
          {item.note && <MessageSquareText aria-hidden />}
          {item.rejected && <ThumbsDown aria-hidden />}
          {item.starred && <Star aria-hidden fill="currentColor" className={styles.star} />}
        </span>
      )}
    </div>
  );
});

function TileMedia({ item, isPlaying }: { item: Item; isPlaying: boolean }) {
  const kind = kindOf(item.mime_type);
  const urls = `${item.url} ${item.poster_url}`;
  const [brokenUrls, setBrokenUrls] = useState<string | null>(null);
  const hasRetried = useRef(false);
  const handleError = () => {
    // the URL may have expired
    if (hasRetried.current) setBrokenUrls(urls);
    else {
      hasRetried.current = true;
      void items.renew([item.id]);
    }
  };
  if (brokenUrls === urls) return <MissingMedia item={item} />;
  if (kind === "audio") {
    return (
      <span className={styles.sound}>
        <AudioLines aria-hidden strokeWidth={1.4} />
      </span>
    );
  }
  if (kind === "text") return <Excerpt url={item.url} onError={handleError} />;
  if (kind === "other") return <MissingMedia item={item} />;
  return (
    <>
      {item.poster_url || kind === "image" ? (
        <img src={here(item.poster_url ?? item.url)} alt="" decoding="async" draggable={false} onError={handleError} />
      ) : (
        // no poster yet
        <video
          src={`${here(item.url)}#t=0.01`}
          aria-hidden
          muted
          playsInline
          preload="metadata"
          onError={handleError}
        />
      )}
      {kind === "video" && !isPlaying && (
        <span className={styles.playable}>
          <Play aria-hidden fill="currentColor" />
          {item.seconds ? clock(item.seconds) : null}
        </span>
      )}
      {isPlaying && kind === "video" && (
        <video src={here(item.preview_url ?? item.url)} aria-hidden autoPlay muted loop playsInline data-preview />
      )}
    </>
  );
}

function MissingMedia({ item }: { item: Item | undefined }) {
  return <Unavailable kind={item ? kindOf(item.mime_type) : "image"} url={item?.url} className={styles.lost} />;
}

const MAX_EXCERPT = 600;

function Excerpt({ url, onError }: { url: string; onError: () => void }) {
  const [text, setText] = useState<string | null>(null);
  const latestOnError = useLatest(onError);
  useEffect(() => {
    const stop = new AbortController();
    fetch(here(url), { signal: stop.signal, headers: { Range: `bytes=0-${4 * MAX_EXCERPT}` } })
      .then(async (answer) =>
        answer.ok ? setText((await answer.text()).slice(0, MAX_EXCERPT)) : latestOnError.current(),
      )
      .catch(() => !stop.signal.aborted && latestOnError.current());
    return () => stop.abort();
  }, [url, latestOnError]);
  return (
    <span className={styles.excerpt}>
      <FileText aria-hidden />
      {text}
    </span>
  );
}
