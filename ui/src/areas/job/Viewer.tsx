// What a job makes, large: its output, beside its input where there is one, and a live preview while it runs.

import { Hourglass, ImageOff } from "lucide-react";
import { type ReactNode, useEffect, useRef, useState } from "react";
import { here } from "@/api/client";
import type { AboutJob, Job } from "@/api/types";
import { Sync } from "@/areas/gallery/sync";
import { CompareSlider } from "@/kit/CompareSlider";
import { useLasting } from "@/kit/lasting";
import { kindOf, Media, type MediaFile } from "@/kit/Media";
import { Player } from "@/kit/Player";
import { Segmented } from "@/kit/Segmented";
import { job as texts } from "@/texts/job";
import { queue } from "@/texts/queue";
import { LivePreview } from "./LivePreview";
import { filesOf, hasEnded } from "./rules";
import styles from "./viewer.module.css";

const isSeen = (file: { mime_type?: string | null } | null | undefined) =>
  ["image", "video"].includes(kindOf(file?.mime_type ?? ""));

interface ViewerProps {
  job: Job;
  about?: AboutJob | null | undefined;
  /** Which of what it made is shown. */
  at: number;
  onAt: (at: number) => void;
  /** Fills the height it has, and has the keys of a player; else it has a height of its own. */
  isLarge?: boolean;
}

export function Viewer({ job, about, at, onAt, isLarge = false }: ViewerProps) {
  const made = filesOf(job, about);
  const output = made[Math.min(at, made.length - 1)];
  const input = inputOf(job);
  const canCompare = isSeen(output?.file) && isSeen(input);
  const isStill = kindOf(output?.file.mime_type ?? "") === "image" && kindOf(input?.mime_type ?? "") === "image";
  const [chosen, setChosen] = useState<string | null>(null);
  const shown = chosen ?? (canCompare && isStill ? "both" : "output");
  const name = job.label ?? texts.title;

  if (!output) {
    return (
      <Frame isLarge={isLarge}>
        {job.status === "processing" ? (
          <LivePreview id={job.id} name={queue.livePreview(name)}>
            {input && isSeen(input) ? (
              <div className={styles.faded}>
                <Still file={input} name={texts.input} />
              </div>
            ) : (
              <Nothing icon={<Hourglass aria-hidden />} text={texts.waitingForPreview} />
            )}
          </LivePreview>
        ) : input && isSeen(input) ? (
          <>
            <Still file={input} name={input.name} />
            <span className={styles.tag}>{texts.input}</span>
          </>
        ) : (
          <Nothing icon={<ImageOff aria-hidden />} text={hasEnded(job) ? texts.noOutputEnded : texts.noOutput} />
        )}
      </Frame>
    );
  }
  return (
    <div className={isLarge ? styles.column : undefined}>
      <Frame isLarge={isLarge} isText={kindOf(output.file.mime_type) === "text"}>
        {shown === "both" && canCompare && input ? (
          <Compared input={input} output={output.file} name={output.name} />
        ) : shown === "input" && input ? (
          <Whole file={input} name={input.name} hasKeys={isLarge} />
        ) : (
          <Whole file={output.file} name={output.name} hasKeys={isLarge} />
        )}
      </Frame>
      {(canCompare || made.length > 1) && (
        <div className={styles.below}>
          {canCompare && (
            <Segmented
              name={texts.show}
              value={shown}
              choices={[
                { value: "both", name: texts.both },
                { value: "output", name: capital(texts.output) },
                { value: "input", name: capital(texts.input) },
              ]}
              onChange={setChosen}
            />
          )}
          {made.length > 1 && (
            <ul className={styles.others} aria-label={texts.outputs}>
              {made.map((each, index) => (
                <li key={each.file.url}>
                  <button
                    type="button"
                    aria-pressed={index === at}
                    aria-label={each.name}
                    onClick={() => {
                      onAt(index);
                      setChosen("output");
                    }}
                  >
                    <Media file={each.file} name="" playsOnHover={false} />
                  </button>
                </li>
              ))}
            </ul>
          )}
        </div>
      )}
    </div>
  );
}

const capital = (text: string) => text[0]?.toUpperCase() + text.slice(1);

function inputOf(job: Job): (MediaFile & { name: string }) | null {
  const { input } = job;
  if (!input?.mime_type) return null;
  return {
    url: input.url,
    mime_type: input.mime_type,
    poster_url: input.poster_url ?? null,
    name: input.name ?? texts.input,
  };
}

function Frame({ isLarge, isText, children }: { isLarge: boolean; isText?: boolean; children: ReactNode }) {
  return (
    <div className={styles.frame} data-large={isLarge || undefined} data-text={isText || undefined}>
      {children}
    </div>
  );
}

function Nothing({ icon, text }: { icon: ReactNode; text: string }) {
  return (
    <p className={styles.nothing}>
      {icon}
      {text}
    </p>
  );
}

/** Its address without a signature, which is another one whenever it is asked for. */
const fileOf = ({ url }: MediaFile): string => url.split("?")[0] ?? url;

const Whole = ({ file, name, hasKeys }: { file: MediaFile; name: string; hasKeys: boolean }) =>
  kindOf(file.mime_type) === "video" ? (
    <Player key={fileOf(file)} file={file} name={name} hasKeys={hasKeys} />
  ) : (
    <Media file={file} name={name} isWhole />
  );

/** Over each other; what plays, plays together. */
function Compared({ input, output, name }: { input: MediaFile; output: MediaFile; name: string }) {
  const [sync] = useState(() => new Sync());
  useEffect(() => sync.play(), [sync]);
  return (
    <CompareSlider
      before={<Still key={fileOf(input)} file={input} name={texts.input} sync={sync} />}
      after={<Still key={fileOf(output)} file={output} name={name} sync={sync} />}
      beforeName={texts.input}
      afterName={texts.output}
    />
  );
}

/** Without buttons of its own: it may lie under a slider. */
function Still({ file, name, sync }: { file: MediaFile; name: string; sync?: Sync }) {
  const video = useRef<HTMLVideoElement>(null);
  const { url, failed } = useLasting(file.url);
  useEffect(() => (video.current && sync ? sync.add(video.current) : undefined), [sync]);
  if (kindOf(file.mime_type) !== "video") return <Media file={file} name={name} isWhole />;
  return (
    <video
      ref={video}
      className={styles.still}
      src={here(url)}
      onError={failed}
      poster={file.poster_url ? here(file.poster_url) : undefined}
      aria-label={name}
      autoPlay={!sync}
      loop={!sync}
      muted
      playsInline
    />
  );
}
