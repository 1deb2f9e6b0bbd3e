import {
  ChevronLeft,
  ChevronRight,
  ImageOff,
  Info as InfoIcon,
  Minus,
  Plus,
  SquareCheck,
  Star,
  ThumbsDown,
  X,
} from "lucide-react";
import { Dialog } from "radix-ui";
import { type ReactNode, useEffect, useRef, useState } from "react";
import { here } from "@/api/client";
import { classes, EmptyState, IconButton } from "@/kit";
import { kindOf } from "@/kit/Media";
import { useKeys } from "@/lib/keyboard";
import { useLocalStorage } from "@/lib/local-storage";
import { common } from "@/texts/common";
import { gallery as texts } from "@/texts/gallery";
import { FullMedia } from "./FullMedia";
import { InfoPanel } from "./InfoPanel";
import type { Item } from "./item";
import { items, useIsMissing, useItem } from "./item-store";
import { nameOf } from "./Tile";
import styles from "./viewer.module.css";
import { clampView, FIT, fitScale, type Size, type View, ZoomPane, zoomBy } from "./ZoomPane";

interface LightboxProps {
  id: string;
  order: readonly string[];
  isSelected: boolean;
  onShow: (id: string) => void;
  onClose: () => void;
  onMark: (item: Item, mark: "starred" | "rejected") => void;
  onSelect: () => void;
  actions: ReactNode;
}

const STEP = 1.5;

export function Lightbox({ id, order, isSelected, onShow, onClose, onMark, onSelect, actions }: LightboxProps) {
  const item = useItem(id);
  const isGone = useIsMissing(id);
  const content = useRef<HTMLDivElement>(null);
  const [shownView, setShownView] = useState<{ id: string; view: View }>({ id, view: FIT });
  // another output starts fitted
  const view = shownView.id === id ? shownView.view : FIT;
  const setView = (change: View | ((now: View) => View)) =>
    setShownView((now) => {
      const before = now.id === id ? now.view : FIT;
      return { id, view: typeof change === "function" ? change(before) : change };
    });
  const [pane, setPane] = useState<Size | null>(null);
  const [info, setInfo] = useLocalStorage("gallery.info");
  const place = order.indexOf(id);
  useEffect(() => {
    const near = [id, ...[place + 1, place - 1].map((each) => order[each]).filter((each) => each !== undefined)];
    void items.all(near).then((found) => {
      for (const each of found) if (kindOf(each.mime_type) === "image") new Image().src = here(each.url);
    });
  }, [id, order, place]);

  const go = (by: number) => {
    const next = place < 0 ? undefined : order[place + by];
    if (next !== undefined) onShow(next);
  };
  const toggleVideo = () => {
    const video = content.current?.querySelector<HTMLMediaElement>("video, audio");
    if (video?.paused) void video.play();
    else video?.pause();
  };
  // only pictures zoom: players have a full screen mode and controls
  const canZoom = item !== undefined && kindOf(item.mime_type) === "image";
  const zoom = (factor: number) => canZoom && setView((now) => zoomBy(now, factor));
  const fit = fitScale(pane, item ?? {}, devicePixelRatio);
  const toggleInfo = () => setInfo(info === "1" ? null : "1");
  const { keys, verbs } = texts;
  const group = texts.title;
  useKeys([
    { keys: "ArrowRight", name: keys.next, group, run: () => go(1) },
    { keys: "ArrowLeft", name: keys.previous, group, run: () => go(-1) },
    { keys: "j", name: keys.next, group, run: () => go(1) },
    { keys: "k", name: keys.previous, group, run: () => go(-1) },
    { keys: "s", name: verbs.star, group, run: () => item && onMark(item, "starred") },
    { keys: "d", name: verbs.reject, group, run: () => item && onMark(item, "rejected") },
    { keys: "x", name: verbs.select, group, run: onSelect },
    { keys: "i", name: keys.info, group, run: toggleInfo },
    { keys: "+", name: keys.zoomIn, group, run: () => zoom(STEP) },
    { keys: "=", name: keys.zoomIn, group, run: () => zoom(STEP) },
    { keys: "-", name: keys.zoomOut, group, run: () => zoom(1 / STEP) },
    { keys: "0", name: keys.fit, group, run: () => setView(FIT) },
    { keys: "1", name: keys.own, group, run: () => canZoom && fit && setView(clampView({ ...FIT, scale: 1 / fit })) },
  ]);
  const name = item ? nameOf(item) : texts.tile.unnamed;
  return (
    <Dialog.Root open onOpenChange={(isOpen) => !isOpen && onClose()}>
      <Dialog.Portal>
        <Dialog.Content
          ref={content}
          className={styles.lightbox}
          aria-describedby={undefined}
          tabIndex={-1}
          onOpenAutoFocus={(event) => {
            // shortcuts work at once; no button is focused
            event.preventDefault();
            content.current?.focus();
          }}
          onCloseAutoFocus={(event) => event.preventDefault()}
          onKeyDown={(event) => {
            const { target } = event;
            const isRange = target instanceof HTMLInputElement && target.type === "range";
            if (isRange && event.key.startsWith("Arrow")) event.stopPropagation();
            if (event.key !== " " || !(target instanceof HTMLElement) || target.closest("button, input, textarea, a"))
              return;
            event.preventDefault();
            toggleVideo();
          }}
          onClick={(event) => {
            // a clicked button must not keep the space key
            const isButton = (event.target as Element).closest("button") !== null;
            if (event.detail > 0 && isButton && !document.querySelector("[data-owns-keys]")) content.current?.focus();
          }}
        >
          <Dialog.Title className="visually-hidden">{texts.lightbox.name(name)}</Dialog.Title>
          <div className={styles.bar}>
            <IconButton icon={X} name={common.close} keys="Escape" onClick={onClose} />
            <div className={styles.name}>
              <strong>{name}</strong>
              {place >= 0 && <span>{texts.lightbox.position(place + 1, order.length)}</span>}
            </div>
            <div className={styles.tools}>
              {canZoom && (
                <span className={styles.zooming}>
                  <IconButton
                    icon={Minus}
                    name={keys.zoomOut}
                    keys="-"
                    disabled={view.scale <= 1}
                    onClick={() => setView((now) => zoomBy(now, 1 / STEP))}
                  />
                  <span>{texts.lightbox.zoom(view.scale, fit)}</span>
                  <IconButton
                    icon={Plus}
                    name={keys.zoomIn}
                    keys="+"
                    onClick={() => setView((now) => zoomBy(now, STEP))}
                  />
                </span>
              )}
              {item && (
                <>
                  <IconButton
                    icon={Star}
                    name={item.starred ? verbs.unstar : verbs.star}
                    keys="s"
                    isPressed={item.starred}
                    className={item.starred ? (styles.on ?? "") : ""}
                    onClick={() => onMark(item, "starred")}
                  />
                  <IconButton
                    icon={ThumbsDown}
                    name={item.rejected ? verbs.unreject : verbs.reject}
                    keys="d"
                    isPressed={item.rejected}
                    onClick={() => onMark(item, "rejected")}
                  />
                  <IconButton
                    icon={SquareCheck}
                    name={verbs.select}
                    keys="x"
                    isPressed={isSelected}
                    className={isSelected ? (styles.on ?? "") : ""}
                    onClick={onSelect}
                  />
                  {actions}
                </>
              )}
              <IconButton icon={InfoIcon} name={keys.info} keys="i" isPressed={info === "1"} onClick={toggleInfo} />
            </div>
          </div>
          <div className={styles.viewport} data-selected={isSelected || undefined}>
            {item ? (
              <ZoomPane view={view} onView={setView} onSwipe={go} onPane={setPane} isFixed={!canZoom}>
                <FullMedia key={item.id} item={item} />
              </ZoomPane>
            ) : (
              isGone && <EmptyState icon={ImageOff} title={texts.lightbox.gone} text={texts.lightbox.goneAdvice} />
            )}
            {place > 0 && (
              <IconButton
                icon={ChevronLeft}
                name={keys.previous}
                keys="ArrowLeft"
                className={classes(styles.side, styles.before)}
                onClick={() => go(-1)}
              />
            )}
            {place >= 0 && place < order.length - 1 && (
              <IconButton
                icon={ChevronRight}
                name={keys.next}
                keys="ArrowRight"
                className={classes(styles.side, styles.after)}
                onClick={() => go(1)}
              />
            )}
          </div>
          {item && info === "1" && <InfoPanel item={item} onClose={toggleInfo} />}
        </Dialog.Content>
      </Dialog.Portal>
    </Dialog.Root>
  );
}
