import { AudioLines, Film, FolderOpen, FolderUp, ImagePlus, Plus, Sparkles, X } from "lucide-react";
import { type DragEvent, useEffect, useRef, useState } from "react";
import { here } from "@/api/client";
import { typeOf } from "@/api/uploads";
import { filesIn } from "@/app/dropping";
import { Button, classes, Field, Heading, Progress, TextField } from "@/kit";
import { create as texts } from "@/texts/create";
import styles from "./create.module.css";
import { addFiles, clearFiles, type Given, removeFile } from "./drafts";
import type { Form } from "./form";
import { type Input, takes } from "./rules";

// A page with thousands of pictures is slow, and nobody looks at them all.
const MOST_SHOWN = 60;

const byPath = (a: File, b: File): number =>
  a.webkitRelativePath.localeCompare(b.webkitRelativePath, undefined, { numeric: true });

interface InputsProps {
  form: Form;
  input: Input;
  /** The input folder of a desk. */
  root: string | null;
  /** Why the folder cannot be worked on, as the server says while one types. */
  folderProblem: string | null;
  onSample: (() => void) | null;
  /** Nothing can be given. */
  isDisabled?: boolean;
}

/** Files as thumbnails; those of the main input may be many, or a folder of the machine. */
export function Inputs({ form, input, root, folderProblem, onSample, isDisabled = false }: InputsProps) {
  const { slug } = form.choice;
  const chooser = useRef<HTMLInputElement>(null);
  const folder = useRef<HTMLInputElement>(null);
  const [isOver, setOver] = useState(false);
  const given = form.draft.files[input.key] ?? [];
  const isMany = input.is_primary_input;
  const hasFolder = isMany && form.draft.folder !== null;
  const problem = form.problems[input.key];
  const add = (files: readonly File[]) => {
    if (isDisabled) return;
    const fitting = files.filter((each) => takes(input, typeOf(each)));
    if (!fitting.length) {
      const wrong = texts.taking.cannot(files[0]?.name ?? "", input.type);
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
    // the window asks what to do with what it gets; here that is known
    event.preventDefault();
    add((await filesIn(event.dataTransfer)).map((each) => each.file));
  };
  const shown = given.slice(0, MOST_SHOWN);
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
          // all files in it, those of its folders included
          {...{ webkitdirectory: "" }}
          onChange={(event) => {
            add([...(event.target.files ?? [])].sort(byPath));
            event.target.value = "";
          }}
        />
      )}
      {hasFolder ? (
        <Field name={texts.form.folder} hint={texts.form.folderHint(root ?? "")} problem={problem ?? folderProblem}>
          <TextField
            value={form.draft.folder ?? ""}
            spellCheck={false}
            onChange={(event) => form.change({ folder: event.target.value })}
          />
        </Field>
      ) : given.length ? (
        <ul
          className={classes(styles.thumbs, isOver && styles.over)}
          onDragOver={over}
          onDragLeave={() => setOver(false)}
          onDrop={drop}
        >
          {shown.map((each) => (
            <Thumb key={each.key} given={each} onRemove={() => removeFile(slug, input.key, each.key)} />
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
        // biome-ignore lint/a11y/noStaticElementInteractions: the button in it does the same for those who do not drag
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
      {problem && !hasFolder && (
        <p className={styles.problem} role="alert">
          {problem}
        </p>
      )}
    </section>
  );
}

function Thumb({ given, onRemove }: { given: Given; onRemove: () => void }) {
  return (
    <li className={styles.thumb} data-problem={given.problem ? true : undefined} title={given.problem ?? given.name}>
      <Picture given={given} />
      {given.id === null && !given.problem && (
        <span className={styles.sending}>
          <Progress value={given.part} name={texts.form.uploading(given.name)} />
        </span>
      )}
      <span className={styles.thumbName}>{given.problem ? texts.form.failed : given.name}</span>
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

/** As small as it is shown; a poster where there is one. */
export function Picture({ given }: { given: Given }) {
  const [isGone, setGone] = useState(false);
  // biome-ignore lint/correctness/useExhaustiveDependencies: another address may work
  useEffect(() => setGone(false), [given.url]);
  const kind = given.mime.split("/")[0];
  const url = given.url && (given.url.startsWith("blob:") ? given.url : here(given.url));
  if (url && !isGone && kind === "image") {
    return <img src={url} alt={given.name} decoding="async" draggable={false} onError={() => setGone(true)} />;
  }
  if (url && !isGone && kind === "video") {
    return (
      <video
        src={`${url}#t=0.01`}
        aria-label={given.name}
        muted
        playsInline
        preload="metadata"
        onError={() => setGone(true)}
      />
    );
  }
  const Icon = kind === "audio" ? AudioLines : kind === "video" ? Film : ImagePlus;
  return <Icon role="img" aria-label={given.name} className={styles.thumbIcon} />;
}
