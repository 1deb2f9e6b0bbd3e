import { Maximize2, Minus, Plus, X } from "lucide-react";
import { Dialog } from "radix-ui";
import { useEffect, useRef, useState } from "react";
import { IconButton } from "@/kit";
import { PlaybackSync } from "@/kit/playback-sync";
import { Segmented } from "@/kit/Segmented";
import { useKeys } from "@/lib/keyboard";
import { common } from "@/texts/common";
import { gallery as texts } from "@/texts/gallery";
import compareStyles from "./Compare.module.css";
import { SliderView } from "./ComparedMedia";
import { ComparePane } from "./ComparePane";
import { DifferencesTable } from "./DifferencesTable";
import type { Item } from "./item";
import { items } from "./item-store";
import type { Mark } from "./output-mutations";
import { PlaybackControls } from "./PlaybackControls";
import styles from "./viewer.module.css";
import { FIT, type View, zoomBy } from "./ZoomPane";

export const MAX_COMPARED = 4;

const STEP = 1.5;

interface CompareProps {
  ids: readonly string[];
  onClose: () => void;
  onRemove: (id: string) => void;
  onMark: (item: Item, mark: Mark) => void;
}

/** Two to four outputs with shared playback and zoom. */
export function Compare({ ids, onClose, onRemove, onMark }: CompareProps) {
  const [view, setView] = useState<View>(FIT);
  const [how, setHow] = useState("side");
  const [sync] = useState(() => new PlaybackSync());
  const content = useRef<HTMLDivElement>(null);
  const { compare, keys } = texts;
  useEffect(() => void items.all(ids), [ids]);
  useEffect(() => sync.play(), [sync]);
  const isSlider = how === "slider" && ids.length === 2;
  const group = compare.title;
  useKeys([
    { keys: "+", name: keys.zoomIn, group, run: () => setView((now) => zoomBy(now, STEP)) },
    { keys: "=", name: keys.zoomIn, group, run: () => setView((now) => zoomBy(now, STEP)) },
    { keys: "-", name: keys.zoomOut, group, run: () => setView((now) => zoomBy(now, 1 / STEP)) },
    { keys: "0", name: keys.fit, group, run: () => setView(FIT) },
    {
      keys: "v",
      name: compare.how,
      group,
      run: () => ids.length === 2 && setHow((now) => (now === "side" ? "slider" : "side")),
    },
    ...ids.flatMap((id, at) => [
      {
        keys: String(at + 1),
        name: `${texts.verbs.star} ${compare.letters[at]}`,
        group,
        run: () => {
          const item = items.get(id);
          if (item) onMark(item, "starred");
        },
      },
      {
        keys: `d ${at + 1}`,
        name: `${texts.verbs.reject} ${compare.letters[at]}`,
        group,
        run: () => {
          const item = items.get(id);
          if (item) onMark(item, "rejected");
        },
      },
    ]),
  ]);
  return (
    <Dialog.Root open onOpenChange={(isOpen) => !isOpen && onClose()}>
      <Dialog.Portal>
        <Dialog.Content
          ref={content}
          className={styles.lightbox}
          aria-describedby={undefined}
          tabIndex={-1}
          onOpenAutoFocus={(event) => {
            event.preventDefault();
            content.current?.focus();
          }}
          onCloseAutoFocus={(event) => event.preventDefault()}
          onKeyDown={(event) => {
            if (event.key !== " " || (event.target as Element).closest("button, a")) return;
            event.preventDefault();
            sync.toggle();
          }}
        >
          <div className={styles.bar}>
            <IconButton icon={X} name={common.close} keys="Escape" onClick={onClose} />
            <Dialog.Title className={compareStyles.barTitle}>{compare.title}</Dialog.Title>
            <div className={styles.tools}>
              {ids.length === 2 && (
                <Segmented
                  name={compare.how}
                  value={how}
                  choices={[
                    { value: "side", name: compare.sideBySide },
                    { value: "slider", name: compare.slider },
                  ]}
                  onChange={setHow}
                />
              )}
              {!isSlider && (
                <span className={styles.zooming}>
                  <IconButton
                    icon={Minus}
                    name={keys.zoomOut}
                    keys="-"
                    disabled={view.scale <= 1}
                    onClick={() => setView((now) => zoomBy(now, 1 / STEP))}
                  />
                  <span>{texts.lightbox.zoom(view.scale, null)}</span>
                  <IconButton
                    icon={Plus}
                    name={keys.zoomIn}
                    keys="+"
                    onClick={() => setView((now) => zoomBy(now, STEP))}
                  />
                  <IconButton icon={Maximize2} name={keys.fit} keys="0" onClick={() => setView(FIT)} />
                </span>
              )}
            </div>
          </div>
          {isSlider ? (
            <SliderView ids={ids} sync={sync} />
          ) : (
            <div className={compareStyles.panes} data-count={ids.length}>
              {ids.map((id, at) => (
                <ComparePane
                  key={id}
                  id={id}
                  letter={compare.letters[at] ?? ""}
                  sync={sync}
                  view={view}
                  onView={setView}
                  onMark={onMark}
                  {...(ids.length > 2 && { onRemove: () => onRemove(id) })}
                />
              ))}
            </div>
          )}
          <div className={compareStyles.foot}>
            <PlaybackControls sync={sync} />
            <DifferencesTable ids={ids} />
          </div>
        </Dialog.Content>
      </Dialog.Portal>
    </Dialog.Root>
  );
}
