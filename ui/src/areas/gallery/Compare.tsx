import { useQueries } from "@tanstack/react-query";
import { Maximize2, Minus, Pause, Play, Plus, SkipBack, SkipForward, Star, ThumbsDown, X } from "lucide-react";
import { Dialog } from "radix-ui";
import { useEffect, useRef, useState, useSyncExternalStore } from "react";
import { here } from "@/api/client";
import { useKeys } from "@/app/keyboard";
import { IconButton } from "@/kit";
import { CompareSlider } from "@/kit/CompareSlider";
import { kindOf, Media } from "@/kit/Media";
import { Segmented } from "@/kit/Segmented";
import { common } from "@/texts/common";
import { gallery as texts } from "@/texts/gallery";
import { aboutJob, type Mark } from "./data";
import { differing } from "./differing";
import type { Item } from "./item";
import { items, useItem } from "./items";
import { Sync } from "./sync";
import { nameOf } from "./Tile";
import styles from "./viewer.module.css";
import { FIT, type View, Zoom, zoomed } from "./Zoom";

export const MOST_COMPARED = 4;
const STEP = 1.5;
const FRAME_SECONDS = 1 / 24;

interface CompareProps {
  ids: readonly string[];
  onClose: () => void;
  onRemove: (id: string) => void;
  onMark: (item: Item, mark: Mark) => void;
}

/** Two to four at once: what plays, plays together; where one is enlarged, all are. */
export function Compare({ ids, onClose, onRemove, onMark }: CompareProps) {
  const [view, setView] = useState<View>(FIT);
  const [how, setHow] = useState("side");
  const [sync] = useState(() => new Sync());
  const content = useRef<HTMLDivElement>(null);
  const { compare, keys } = texts;
  useEffect(() => void items.all(ids), [ids]);
  useEffect(() => sync.play(), [sync]);
  const isSlider = how === "slider" && ids.length === 2;
  const group = compare.title;
  useKeys([
    { keys: "+", name: keys.zoomIn, group, run: () => setView((now) => zoomed(now, STEP)) },
    { keys: "=", name: keys.zoomIn, group, run: () => setView((now) => zoomed(now, STEP)) },
    { keys: "-", name: keys.zoomOut, group, run: () => setView((now) => zoomed(now, 1 / STEP)) },
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
            <Dialog.Title className={styles.barTitle}>{compare.title}</Dialog.Title>
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
                    onClick={() => setView((now) => zoomed(now, 1 / STEP))}
                  />
                  <span>{texts.lightbox.zoom(view.scale, null)}</span>
                  <IconButton
                    icon={Plus}
                    name={keys.zoomIn}
                    keys="+"
                    onClick={() => setView((now) => zoomed(now, STEP))}
                  />
                  <IconButton icon={Maximize2} name={keys.fit} keys="0" onClick={() => setView(FIT)} />
                </span>
              )}
            </div>
          </div>
          {isSlider ? (
            <Sliding ids={ids} sync={sync} />
          ) : (
            <div className={styles.panes} data-count={ids.length}>
              {ids.map((id, at) => (
                <Pane
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
          <Controls sync={sync} />
          <Differences ids={ids} />
        </Dialog.Content>
      </Dialog.Portal>
    </Dialog.Root>
  );
}

interface PaneProps {
  id: string;
  letter: string;
  sync: Sync;
  view: View;
  onView: (change: (view: View) => View) => void;
  onMark: (item: Item, mark: Mark) => void;
  onRemove?: () => void;
}

function Pane({ id, letter, sync, view, onView, onMark, onRemove }: PaneProps) {
  const item = useItem(id);
  const { verbs } = texts;
  return (
    <figure className={styles.pane} data-pane={letter}>
      <div className={styles.paneView}>
        {item && (
          <Zoom view={view} onView={onView}>
            <Shown item={item} sync={sync} />
          </Zoom>
        )}
      </div>
      <figcaption className={styles.paneFoot}>
        <span className={styles.letter}>{letter}</span>
        <span className={styles.paneName}>{item ? nameOf(item) : ""}</span>
        {item?.seed != null && <span className={styles.paneSeed}>{`${texts.info.seed} ${String(item.seed)}`}</span>}
        {item && (
          <>
            <IconButton
              icon={Star}
              size="small"
              name={`${item.starred ? verbs.unstar : verbs.star}: ${letter}`}
              isPressed={item.starred}
              className={item.starred ? (styles.on ?? "") : ""}
              onClick={() => onMark(item, "starred")}
            />
            <IconButton
              icon={ThumbsDown}
              size="small"
              name={`${item.rejected ? verbs.unreject : verbs.reject}: ${letter}`}
              isPressed={item.rejected}
              onClick={() => onMark(item, "rejected")}
            />
          </>
        )}
        {onRemove && <IconButton icon={X} size="small" name={texts.compare.remove(letter)} onClick={onRemove} />}
      </figcaption>
    </figure>
  );
}

/** Why they look different: the values that are not the same in all of them. */
function Differences({ ids }: { ids: readonly string[] }) {
  const jobs = ids.map((id) => items.get(id)?.job_id ?? "");
  const asked = useQueries({ queries: jobs.map((id) => ({ ...aboutJob(id), enabled: id !== "" })) });
  const { compare } = texts;
  const made = asked.map(({ data }) => data?.inputs);
  if (!made.every((each) => each !== undefined)) return null;
  const found = differing(made);
  return (
    <section className={styles.differences} aria-label={compare.differs}>
      {found.length === 0 && <p>{compare.same}</p>}
      {found.length > 0 && (
        <table>
          <thead>
            <tr>
              <th scope="col">{compare.differs}</th>
              {ids.map((id, at) => (
                <th key={id} scope="col">
                  {compare.letters[at]}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {found.map(({ label, values }) => (
              <tr key={label}>
                <th scope="row">{label}</th>
                {values.map((value, at) => (
                  <td key={ids[at]} title={value}>
                    {value || "—"}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}

function Sliding({ ids, sync }: { ids: readonly string[]; sync: Sync }) {
  const [a, b] = [useItem(ids[0] ?? ""), useItem(ids[1] ?? "")];
  if (!a || !b) return null;
  return (
    <div className={styles.sliding}>
      <CompareSlider
        before={<Shown item={a} sync={sync} />}
        after={<Shown item={b} sync={sync} />}
        beforeName={`A · ${nameOf(a)}`}
        afterName={`B · ${nameOf(b)}`}
      />
    </div>
  );
}

function Shown({ item, sync }: { item: Item; sync: Sync }) {
  const video = useRef<HTMLVideoElement>(null);
  // what plays goes on with the address that it began with
  const [url] = useState(item.url);
  useEffect(() => (video.current ? sync.add(video.current) : undefined), [sync]);
  const kind = kindOf(item.mime_type);
  if (kind === "video") {
    return (
      <video
        ref={video}
        className={styles.compared}
        src={here(url)}
        poster={item.poster_url ? here(item.poster_url) : undefined}
        aria-label={nameOf(item)}
        muted
        playsInline
        preload="auto"
      />
    );
  }
  if (kind === "image") return <img className={styles.compared} src={here(url)} alt={nameOf(item)} draggable={false} />;
  return <Media file={{ ...item, url }} name={nameOf(item)} isWhole />;
}

function Controls({ sync }: { sync: Sync }) {
  const stand = useSyncExternalStore(sync.watch, () => `${sync.isPlaying}|${sync.time}|${sync.length}`);
  const [isPlaying, time, length] = [stand.startsWith("true"), sync.time, sync.length];
  if (!length) return null;
  const { media } = common;
  const step = (direction: 1 | -1) => {
    sync.pause();
    sync.seek(sync.time + direction * FRAME_SECONDS);
  };
  return (
    <div className={styles.together}>
      <IconButton
        icon={isPlaying ? Pause : Play}
        name={isPlaying ? media.pause : media.play}
        keys=" "
        onClick={() => sync.toggle()}
      />
      <IconButton icon={SkipBack} name={media.back} onClick={() => step(-1)} />
      <IconButton icon={SkipForward} name={media.forward} onClick={() => step(1)} />
      <input
        type="range"
        min={0}
        max={length}
        step={0.01}
        value={time}
        aria-label={texts.compare.together}
        aria-valuetext={texts.compare.seconds(time, length)}
        onChange={(event) => sync.seek(event.target.valueAsNumber)}
      />
      <span>{texts.compare.seconds(time, length)}</span>
    </div>
  );
}
