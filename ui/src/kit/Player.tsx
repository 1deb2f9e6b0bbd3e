import { Maximize, Pause, Play, Repeat, SkipBack, SkipForward, Volume2, VolumeX } from "lucide-react";
import { type Ref, useImperativeHandle, useRef, useState } from "react";
import { here } from "@/api/client";
import { useKeys } from "@/lib/keyboard";
import { clock, common } from "@/texts/common";
import { IconButton } from "./Button";
import { useFileUrl } from "./file-url";
import type { MediaFile } from "./Media";
import styles from "./Player.module.css";
import { Unavailable } from "./Unavailable";

/** Controls a player from outside, to keep several in sync. */
export interface PlayerHandle {
  play: () => void;
  pause: () => void;
  seek: (seconds: number) => void;
  readonly time: number;
}

interface PlayerProps {
  file: MediaFile;
  name: string;
  autoPlay?: boolean;
  /** Its shortcuts work regardless of the focus. */
  hasKeys?: boolean;
  ref?: Ref<PlayerHandle>;
  onTime?: (seconds: number) => void;
}

// browsers do not expose the frame rate; most clips have 24 or 30
const FRAME_SECONDS = 1 / 24;

export function Player({ file, name, autoPlay = false, hasKeys = false, ref, onTime }: PlayerProps) {
  const video = useRef<HTMLVideoElement>(null);
  const [isPlaying, setPlaying] = useState(false);
  const [isMuted, setMuted] = useState(true);
  const [isLooping, setLooping] = useState(true);
  const [time, setTime] = useState(0);
  const [length, setLength] = useState(file.seconds ?? 0);
  const { media } = common;
  const { url, isBroken, onError } = useFileUrl(file.url);
  // restored when the file has been reloaded from a new URL
  const resume = useRef<{ time: number; isPlaying: boolean }>(undefined);

  const play = () => void video.current?.play().catch(() => setPlaying(false));
  const toggle = () => (video.current?.paused ? play() : video.current?.pause());
  const seek = (seconds: number) => {
    if (video.current) video.current.currentTime = Math.min(length, Math.max(0, seconds));
  };
  const step = (direction: 1 | -1) => {
    video.current?.pause();
    seek((video.current?.currentTime ?? 0) + direction * FRAME_SECONDS);
  };
  useImperativeHandle(ref, () => ({
    play,
    pause: () => video.current?.pause(),
    seek,
    get time() {
      return video.current?.currentTime ?? 0;
    },
  }));

  const group = media.player;
  useKeys(
    hasKeys
      ? [
          {
            keys: " ",
            name: isPlaying ? media.pause : media.play,
            group,
            run: ({ target }) => {
              // press the focused button instead
              const button = target instanceof HTMLElement ? target.closest<HTMLElement>("button, a, summary") : null;
              if (button) button.click();
              else toggle();
            },
          },
          { keys: ",", name: media.back, group, run: () => step(-1) },
          { keys: ".", name: media.forward, group, run: () => step(1) },
          { keys: "m", name: isMuted ? media.unmute : media.mute, group, run: () => setMuted(!isMuted) },
        ]
      : [],
  );

  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: shortcuts for the buttons inside
    <div
      className={styles.player}
      onKeyDown={(event) => {
        const run = { " ": toggle, ",": () => step(-1), ".": () => step(1), m: () => setMuted(!isMuted) }[event.key];
        if (!run || event.target instanceof HTMLButtonElement) return;
        event.preventDefault();
        run();
      }}
    >
      {isBroken ? (
        <Unavailable kind="video" url={url} className={styles.unavailable} />
      ) : (
        <video
          ref={video}
          src={here(url)}
          poster={file.poster_url ? here(file.poster_url) : undefined}
          aria-label={name}
          autoPlay={autoPlay}
          muted={isMuted}
          loop={isLooping}
          playsInline
          preload="metadata"
          onClick={toggle}
          onPlay={() => setPlaying(true)}
          onPause={() => setPlaying(false)}
          onError={() => {
            resume.current ??= { time, isPlaying };
            onError();
          }}
          onLoadedMetadata={(event) => {
            setLength(event.currentTarget.duration);
            if (!resume.current) return;
            event.currentTarget.currentTime = resume.current.time;
            if (resume.current.isPlaying) play();
            resume.current = undefined;
          }}
          onTimeUpdate={(event) => {
            setTime(event.currentTarget.currentTime);
            onTime?.(event.currentTarget.currentTime);
          }}
        />
      )}
      <div className={styles.controls}>
        <IconButton
          icon={isPlaying ? Pause : Play}
          name={isPlaying ? media.pause : media.play}
          keys=" "
          onClick={toggle}
          size="small"
        />
        <IconButton icon={SkipBack} name={media.back} keys="," onClick={() => step(-1)} size="small" />
        <IconButton icon={SkipForward} name={media.forward} keys="." onClick={() => step(1)} size="small" />
        <input
          type="range"
          className={styles.seek}
          aria-label={media.position}
          aria-valuetext={clock(time)}
          min={0}
          max={length || 1}
          step={0.01}
          value={time}
          onChange={(event) => seek(event.target.valueAsNumber)}
        />
        <span className={styles.time}>
          {clock(time)} / {clock(length)}
        </span>
        <IconButton
          icon={Repeat}
          name={media.loop}
          isPressed={isLooping}
          onClick={() => setLooping(!isLooping)}
          size="small"
        />
        <IconButton
          icon={isMuted ? VolumeX : Volume2}
          name={isMuted ? media.unmute : media.mute}
          keys="m"
          onClick={() => setMuted(!isMuted)}
          size="small"
        />
        <IconButton
          icon={Maximize}
          name={media.fullscreen}
          onClick={() => void video.current?.requestFullscreen()}
          size="small"
        />
      </div>
    </div>
  );
}
