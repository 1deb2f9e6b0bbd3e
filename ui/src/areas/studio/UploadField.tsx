import { CircleAlert, CircleCheck, RotateCcw, WifiOff, X } from "lucide-react";
import { useRef } from "react";
import { typeOf } from "@/api/uploads";
import { Button, Progress } from "@/kit";
import { DropZone } from "@/kit/DropZone";
import { kindOf } from "@/kit/Media";
import { size } from "@/texts/common";
import { studio } from "@/texts/studio";
import styles from "./UploadField.module.css";
import type { FileUpload, Uploader } from "./use-upload";

const texts = studio.effect;

interface UploadFieldProps {
  /** image, video or audio */
  type: string;
  uploader: Uploader;
  isDisabled: boolean;
  problem: string | null;
  onFiles: (files: readonly File[]) => void;
}

export function UploadField({ type, uploader, isDisabled, problem, onFiles }: UploadFieldProps) {
  const { upload } = uploader;
  return (
    <div className={styles.place} data-wrong={problem ? true : undefined}>
      {upload ? (
        <UploadStatus upload={upload} uploader={uploader} type={type} onFiles={onFiles} />
      ) : (
        <DropZone
          title={texts.drop[type] ?? texts.drop.video}
          hint={texts.dropHint}
          accept={`${type}/*`}
          isMany={false}
          isDisabled={isDisabled}
          onFiles={(files) => onFiles(files.map((each) => each.file))}
        />
      )}
      {problem && (
        <p className={styles.problem} role="alert">
          <CircleAlert aria-hidden />
          {problem}
        </p>
      )}
    </div>
  );
}

interface UploadStatusProps {
  upload: FileUpload;
  uploader: Uploader;
  type: string;
  onFiles: (files: readonly File[]) => void;
}

function UploadStatus({ upload, uploader, type, onFiles }: UploadStatusProps) {
  const chooser = useRef<HTMLInputElement>(null);
  const { state, file, part } = upload;
  return (
    <div className={styles.sending} data-state={state}>
      <Preview upload={upload} />
      <div className={styles.sendingText}>
        <div className={styles.sendingHead}>
          <strong title={file.name}>{file.name}</strong>
          <span>{state === "sending" ? texts.sentOf(size(file.size * part), size(file.size)) : size(file.size)}</span>
        </div>
        {(state === "sending" || state === "cut") && (
          <div className={styles.sendingBar}>
            <Progress value={part} name={texts.uploading(file.name)} />
            <span>{texts.percent(part)}</span>
          </div>
        )}
        <div role="status" className={styles.sendingState}>
          {state === "sent" && (
            <p data-tone="good">
              <CircleCheck aria-hidden />
              {texts.uploaded}
            </p>
          )}
          {state === "cut" && (
            <p data-tone="warn">
              <WifiOff aria-hidden />
              <span>
                <strong>{texts.cut}.</strong> {texts.cutText}
              </span>
            </p>
          )}
          {state === "refused" && (
            <p data-tone="bad">
              <CircleAlert aria-hidden />
              <span>
                <strong>{texts.refused}.</strong> {upload.problem}
              </span>
            </p>
          )}
        </div>
        <div className={styles.actions}>
          {(state === "cut" || state === "refused") && (
            <Button size="small" icon={RotateCcw} onClick={uploader.retry}>
              {texts.retry}
            </Button>
          )}
          {(state === "sending" || state === "cut") && (
            <Button size="small" icon={X} onClick={uploader.cancel}>
              {texts.cancel}
            </Button>
          )}
          {(state === "sent" || state === "refused") && (
            <Button size="small" onClick={() => chooser.current?.click()}>
              {texts.another}
            </Button>
          )}
        </div>
      </div>
      <input
        ref={chooser}
        type="file"
        hidden
        accept={`${type}/*`}
        onChange={(event) => {
          const files = [...(event.target.files ?? [])];
          event.target.value = "";
          if (files.length) onFiles(files);
        }}
      />
    </div>
  );
}

/** Shows the local file; nothing is fetched. */
function Preview({ upload: { file, url } }: { upload: FileUpload }) {
  const kind = kindOf(typeOf(file));
  return (
    <div className={styles.preview}>
      {kind === "image" ? (
        <img src={url} alt={file.name} />
      ) : kind === "video" ? (
        <video src={url} aria-label={file.name} muted playsInline controls preload="metadata" />
      ) : (
        <audio src={url} aria-label={file.name} controls preload="metadata" />
      )}
    </div>
  );
}
