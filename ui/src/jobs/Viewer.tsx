// The outputs of a job, compared with its input if any, or a live preview while it runs.

import { Hourglass, ImageOff } from "lucide-react";
import { type ReactNode, useState } from "react";
import type { Job } from "@/api/types";
import { withoutSignature } from "@/kit/file-url";
import { kindOf, Media, type MediaFile } from "@/kit/Media";
import { Player } from "@/kit/Player";
import { Segmented } from "@/kit/Segmented";
import { job as texts } from "@/texts/job";
import { queue } from "@/texts/queue";
import { Bare, Comparison } from "./Comparison";
import { hasEnded } from "./job";
import { LivePreview } from "./LivePreview";
import styles from "./Viewer.module.css";

const isVisual = (file: { mime_type?: string | null } | null | undefined) =>
  ["image", "video"].includes(kindOf(file?.mime_type ?? ""));

interface ViewerProps {
  job: Job;
  /** Index of the displayed output. */
  at: number;
  onAt: (at: number) => void;
  /** Fills the available height and enables the shortcuts of the player. */
  isLarge?: boolean;
}

export function Viewer({ job, at, onAt, isLarge = false }: ViewerProps) {
  const { outputs } = job;
  const output = outputs[Math.min(at, outputs.length - 1)];
  const input = inputOf(job);
  const canCompare = isVisual(output) && isVisual(input);
  const isStill = kindOf(output?.mime_type ?? "") === "image" && kindOf(input?.mime_type ?? "") === "image";
  const [chosen, setChosen] = useState<string | null>(null);
  const shown = chosen ?? (canCompare && isStill ? "both" : "output");
  const name = job.label ?? texts.title;

  if (!output) {
    return (
      <Frame isLarge={isLarge}>
        {job.status === "processing" ? (
          <LivePreview id={job.id} name={queue.livePreview(name)}>
            {input && isVisual(input) ? (
              <div className={styles.faded}>
                <Bare file={input} name={texts.input} />
              </div>
            ) : (
              <Placeholder icon={<Hourglass aria-hidden />} text={texts.waitingForPreview} />
            )}
          </LivePreview>
        ) : input && isVisual(input) ? (
          <>
            <Bare file={input} name={input.name} />
            <span className={styles.tag}>{texts.input}</span>
          </>
        ) : (
          <Placeholder icon={<ImageOff aria-hidden />} text={hasEnded(job) ? texts.noOutputEnded : texts.noOutput} />
        )}
      </Frame>
    );
  }
  return (
    <div className={isLarge ? styles.column : undefined}>
      <Frame isLarge={isLarge} isText={kindOf(output.mime_type) === "text"}>
        {shown === "both" && canCompare && input ? (
          <Comparison input={input} output={output as MediaFile} name={output.filename} />
        ) : shown === "input" && input ? (
          <FullSize file={input} name={input.name} hasKeys={isLarge} />
        ) : (
          <FullSize file={output as MediaFile} name={output.filename} hasKeys={isLarge} />
        )}
      </Frame>
      {(canCompare || outputs.length > 1) && (
        <div className={styles.below}>
          {canCompare && (
            <Segmented
              name={texts.show}
              value={shown}
              choices={[
                { value: "both", name: texts.both },
                { value: "output", name: capitalize(texts.output) },
                { value: "input", name: capitalize(texts.input) },
              ]}
              onChange={setChosen}
            />
          )}
          {outputs.length > 1 && (
            <ul className={styles.others} aria-label={texts.outputs}>
              {outputs.map((each, index) => (
                <li key={each.file_id}>
                  <button
                    type="button"
                    aria-pressed={index === at}
                    aria-label={each.filename}
                    onClick={() => {
                      onAt(index);
                      setChosen("output");
                    }}
                  >
                    <Media file={each as MediaFile} name="" playsOnHover={false} />
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

const capitalize = (text: string) => text[0]?.toUpperCase() + text.slice(1);

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

function Placeholder({ icon, text }: { icon: ReactNode; text: string }) {
  return (
    <p className={styles.placeholder}>
      {icon}
      {text}
    </p>
  );
}

const FullSize = ({ file, name, hasKeys }: { file: MediaFile; name: string; hasKeys: boolean }) =>
  kindOf(file.mime_type) === "video" ? (
    <Player key={withoutSignature(file.url)} file={file} name={name} hasKeys={hasKeys} />
  ) : (
    <Media file={file} name={name} isWhole />
  );
