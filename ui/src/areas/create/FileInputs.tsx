import { AudioLines, Brush, Film, FolderOpen, FolderUp, ImagePlus, Plus, Sparkles, X } from "lucide-react";
import { type DragEvent, lazy, Suspense, useRef, useState } from "react";
import { here } from "@/api/client";
import { typeOf } from "@/api/uploads";
import { FolderField } from "@/folders/FolderField";
import { Button, classes, Field, Heading, Progress, TextField } from "@/kit";
import { readDroppedFiles } from "@/lib/file-drop";
import { useSession } from "@/session/session";
import { create as texts } from "@/texts/create";
import { addFiles, clearFiles, type DraftFile, removeFile } from "./drafts";
import styles from "./FileInputs.module.css";
import type { Form } from "./form";
import { acceptsMime, type Input } from "./inputs";

const MaskDialog = lazy(async () => ({ default: (await import("./MaskDialog")).MaskDialog }));
// More thumbnails make the page slow.
const MAX_SHOWN = 60;

const byPath = (a: File, b: File): number =>
  a.webkitRelativePath.localeCompare(b.webkitRelativePath, undefined, { numeric: true });

const isMaskable = (file: DraftFile): boolean =>
  file.mime.startsWith("image/") && file.mime !== "image/svg+xml" && !file.problem;

interface FileInputsProps {
  form: Form;
  input: Input;
  /** Input folder of the desk; null on a server. */
  root: string | null;
  /** Why the server cannot read the folder. */
  folderProblem: string | null;
  onSample: (() => void) | null;
  isDisabled?: boolean;
}

/** Files as thumbnails. The primary input takes many files, or a folder on the desk. */
export function FileInputs({ form, input, root, folderProblem, onSample, isDisabled = false }: FileInputsProps) {
  const { slug } = form.choice;
  const chooser = useRef<HTMLInputElement>(null);
  const folder = useRef<HTMLInputElement>(null);
  const { isGuest } = useSession();
  const [isOver, setOver] = useState(false);
  const [masked, setMasked] = useState<DraftFile | null>(null);
  const given = form.draft.files[input.key] ?? [];
  const isMany = input.is_primary_input;
  const hasFolder = isMany && form.draft.folder !== null;
  const gone = hasFolder ? [] : given.filter((each) => each.isGone);
  const problem = gone.length ? null : form.problems[input.key];
  const failed = given.find((each) => each.problem && !each.isGone);
  const add = (files: readonly File[]) => {
    if (isDisabled) return;
    const fitting = files.filter((each) => acceptsMime(input, typeOf(each)));
    if (!fitting.length) {
      const wrong = texts.dropping.cannot(files[0]?.name ?? "", input.type);
      return form.setProblems({ ...form.problems, [input.key]: wrong });
    }
    addFiles(slug, input.key, fitting, { isOne: !isMany });
    const { [input.key]: _gone, ...rest } = form.problems;
    form.setProblems(rest);
  };
  const over = (event: DragEvent) => {
    event.preventDefault();
    setOver(true);
  };
  const drop = async (event: DragEvent) => {
    setOver(false);
    if (!event.dataTransfer.types.includes("Files")) return;
    // keep the window's own drop handler from asking what to do with the files
    event.preventDefault();
    add((await readDroppedFiles(event.dataTransfer)).map((each) => each.file));
  };
  const shown = given.slice(0, MAX_SHOWN);
  const Icon = input.type === "audio" ? AudioLines : input.type === "video" ? Film : ImagePlus;
  const name = input.is_primary_input ? texts.form.inputs(input.type, given.length) : input.label;
  return (
    <section className={styles.inputs} data-field={input.key} aria-label={name}>
      <div className={styles.inputsHead}>
        <Heading>
          {name}
          {!input.required && <span className={styles.optional}>{texts.form.optional}</span>}
        </Heading>
        {isMany && !hasFolder && (
          <Button look="quiet" size="small" icon={FolderUp} onClick={() => folder.current?.click()}>
            {texts.form.addFolder}
          </Button>
        )}
        {isMany && root !== null && (
          <Button
            look="quiet"
            size="small"
            icon={FolderOpen}
            onClick={() => form.change({ folder: hasFolder ? null : "" })}
          >
            {hasFolder ? texts.form.fromFiles : texts.form.fromFolder}
          </Button>
        )}
        {given.length > 1 && !hasFolder && (
          <Button look="quiet" size="small" onClick={() => clearFiles(slug, input.key)}>
            {texts.form.removeAll}
          </Button>
        )}
      </div>
      <input
        ref={chooser}
        type="file"
        className="visually-hidden"
        tabIndex={-1}
        aria-label={texts.form.add(input.type, isMany)}
        accept={`${input.type}/*`}
        multiple={isMany}
        disabled={isDisabled}
        onChange={(event) => {
          add([...(event.target.files ?? [])]);
          event.target.value = "";
        }}
      />
      {isMany && !hasFolder && (
        <input
          ref={folder}
          type="file"
          className="visually-hidden"
          tabIndex={-1}
          aria-label={texts.form.addFolder}
          // includes subfolders
          {...{ webkitdirectory: "" }}
          onChange={(event) => {
            add([...(event.target.files ?? [])].sort(byPath));
            event.target.value = "";
          }}
        />
      )}
      {hasFolder ? (
        <Field name={texts.form.folder} hint={texts.form.folderHint(root ?? "")} problem={problem ?? folderProblem}>
          {isGuest ? (
            <TextField
              value={form.draft.folder ?? ""}
              spellCheck={false}
              onChange={(event) => form.change({ folder: event.target.value })}
            />
          ) : (
            <FolderField
              name={texts.form.folder}
              value={form.draft.folder ?? ""}
              placeholder={root ?? ""}
              start={root ?? ""}
              isInside
              onChange={(folder) => form.change({ folder })}
            />
          )}
        </Field>
      ) : given.length ? (
        <ul
          className={classes(styles.thumbs, isOver && styles.over)}
          onDragOver={over}
          onDragLeave={() => setOver(false)}
          onDrop={drop}
        >
          {shown.map((each) => (
            <Thumb
              key={each.key}
              given={each}
              onRemove={() => removeFile(slug, input.key, each.key)}
              onMask={isMaskable(each) ? () => setMasked(each) : null}
            />
          ))}
          {given.length > shown.length && (
            <li className={styles.moreFiles}>{texts.form.more(given.length - shown.length)}</li>
          )}
          {(isMany || given.length === 0) && (
            <li>
              <button
                type="button"
                className={styles.addThumb}
                aria-label={texts.form.add(input.type, isMany)}
                title={texts.form.add(input.type, isMany)}
                onClick={() => chooser.current?.click()}
              >
                <Plus aria-hidden />
              </button>
            </li>
          )}
        </ul>
      ) : (
        // biome-ignore lint/a11y/noStaticElementInteractions: the button inside does the same
        <div
          className={classes(styles.zone, isOver && styles.over, problem && styles.wrong)}
          onDragOver={over}
          onDragLeave={() => setOver(false)}
          onDrop={drop}
        >
          <button
            type="button"
            className={styles.zoneButton}
            disabled={isDisabled}
            onClick={() => chooser.current?.click()}
          >
            <Icon aria-hidden strokeWidth={1.6} />
            <strong>{texts.form.dropHere(input.type, isMany)}</strong>
            {isMany && <span>{texts.form.batchHint}</span>}
          </button>
          {onSample && (
            <Button size="small" icon={Sparkles} onClick={onSample}>
              {texts.form.sample}
            </Button>
          )}
        </div>
      )}
      {masked && (
        <Suspense>
          <MaskDialog slug={slug} field={input.key} file={masked} onClose={() => setMasked(null)} />
        </Suspense>
      )}
      {gone.length > 0 && (
        <div className={styles.gone} role="alert">
          <p className={styles.problem}>{texts.form.gone(gone.map((each) => each.name))}</p>
          <Button size="small" onClick={() => chooser.current?.click()}>
            {texts.form.chooseAgain}
          </Button>
        </div>
      )}
      {[problem, failed?.problem].map(
        (each) =>
          each &&
          !hasFolder && (
            <p key={each} className={styles.problem} role="alert">
              {each}
            </p>
          ),
      )}
    </section>
  );
}

interface ThumbProps {
  given: DraftFile;
  onRemove: () => void;
  /** null if it cannot have a mask. */
  onMask: (() => void) | null;
}

function Thumb({ given, onRemove, onMask }: ThumbProps) {
  const isLost = given.original === null;
  return (
    <li className={styles.thumb} data-problem={given.problem ? true : undefined} title={given.problem ?? given.name}>
      <FilePreview given={given} />
      {given.id === null && !given.problem && (
        <span className={styles.sending}>
          <Progress value={given.part} name={texts.form.uploading(given.name)} />
        </span>
      )}
      <span className={styles.thumbName}>{given.problem && !given.isGone ? texts.form.failed : given.name}</span>
      {onMask && (
        <button
          type="button"
          className={styles.maskThumb}
          aria-label={texts.mask.open(given.name)}
          title={isLost ? texts.mask.lost : texts.mask.open(given.name)}
          aria-pressed={given.original !== undefined}
          disabled={given.id === null || isLost}
          onClick={onMask}
        >
          <Brush aria-hidden />
        </button>
      )}
      <button
        type="button"
        className={styles.removeThumb}
        aria-label={texts.form.remove(given.name)}
        onClick={onRemove}
      >
        <X aria-hidden />
      </button>
    </li>
  );
}

export function FilePreview({ given }: { given: DraftFile }) {
  const [brokenUrl, setBrokenUrl] = useState<string | null>(null);
  const kind = given.mime.split("/")[0];
  const url = given.url && (given.url.startsWith("blob:") ? given.url : here(given.url));
  if (url && url !== brokenUrl && kind === "image") {
    return <img src={url} alt={given.name} decoding="async" draggable={false} onError={() => setBrokenUrl(url)} />;
  }
  if (url && url !== brokenUrl && kind === "video") {
    return (
      <video
        src={`${url}#t=0.01`}
        aria-label={given.name}
        muted
        playsInline
        preload="metadata"
        onError={() => setBrokenUrl(url)}
      />
    );
  }
  const Icon = kind === "audio" ? AudioLines : kind === "video" ? Film : ImagePlus;
  return <Icon role="img" aria-label={given.name} className={styles.thumbIcon} />;
}
