import { Pause, Play, SkipBack, SkipForward } from "lucide-react";
import { useSyncExternalStore } from "react";
import { IconButton } from "@/kit";
import type { PlaybackSync } from "@/kit/playback-sync";
import { common } from "@/texts/common";
import { gallery as texts } from "@/texts/gallery";
import styles from "./Compare.module.css";

const FRAME_SECONDS = 1 / 24;

export function PlaybackControls({ sync }: { sync: PlaybackSync }) {
  const state = useSyncExternalStore(sync.watch, () => `${sync.isPlaying}|${sync.time}|${sync.length}`);
  const [isPlaying, time, length] = [state.startsWith("true"), sync.time, sync.length];
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
