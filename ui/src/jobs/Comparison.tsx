import { Pause, Play, Volume2, VolumeX } from "lucide-react";
import { useEffect, useRef, useState, useSyncExternalStore } from "react";
import { here } from "@/api/client";
import { IconButton } from "@/kit";
import { CompareSlider } from "@/kit/CompareSlider";
import { useFileUrl, withoutSignature } from "@/kit/file-url";
import { kindOf, Media, type MediaFile } from "@/kit/Media";
import { PlaybackSync } from "@/kit/playback-sync";
import { common } from "@/texts/common";
import { job as texts } from "@/texts/job";
import styles from "./Comparison.module.css";

const { media } = common;

interface ComparisonProps {
  input: MediaFile;
  output: MediaFile;
  name: string;
}

/** Input and output on top of each other; videos play in sync, with the sound of the output. */
export function Comparison({ input, output, name }: ComparisonProps) {
  const [sync] = useState(() => new PlaybackSync());
  const [hasSound, setSound] = useState(false);
  useEffect(() => sync.play(), [sync]);
  const isPlaying = useSyncExternalStore(sync.watch, () => sync.isPlaying);
  const hasVideo = [input, output].some((each) => kindOf(each.mime_type) === "video");
  return (
    <div className={styles.comparison}>
      <CompareSlider
        before={<Bare key={withoutSignature(input.url)} file={input} name={texts.input} sync={sync} />}
        after={<Bare key={withoutSignature(output.url)} file={output} name={name} sync={sync} hasSound={hasSound} />}
        beforeName={texts.input}
        afterName={texts.output}
      />
      {hasVideo && (
        <div className={styles.controls}>
          <IconButton
            icon={isPlaying ? Pause : Play}
            name={isPlaying ? media.pause : media.play}
            size="small"
            onClick={() => sync.toggle()}
          />
          {kindOf(output.mime_type) === "video" && (
            <IconButton
              icon={hasSound ? Volume2 : VolumeX}
              name={hasSound ? media.mute : media.unmute}
              size="small"
              onClick={() => setSound(!hasSound)}
            />
          )}
        </div>
      )}
    </div>
  );
}

interface BareProps {
  file: MediaFile;
  name: string;
  sync?: PlaybackSync;
  hasSound?: boolean;
}

/** Media without controls, which would cover the slider. */
export function Bare({ file, name, sync, hasSound = false }: BareProps) {
  const video = useRef<HTMLVideoElement>(null);
  const { url, isBroken, onError } = useFileUrl(file.url);
  useEffect(() => (video.current && sync ? sync.add(video.current) : undefined), [sync]);
  if (isBroken || kindOf(file.mime_type) !== "video") return <Media file={file} name={name} isWhole />;
  return (
    <video
      ref={video}
      className={styles.bare}
      src={here(url)}
      onError={onError}
      poster={file.poster_url ? here(file.poster_url) : undefined}
      aria-label={name}
      autoPlay={!sync}
      loop={!sync}
      muted={!hasSound}
      playsInline
    />
  );
}
