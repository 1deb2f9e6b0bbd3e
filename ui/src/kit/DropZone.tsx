import { Upload } from "lucide-react";
import { type DragEvent, type ReactNode, useRef, useState } from "react";
import { type DroppedFile, readDroppedFiles } from "@/lib/file-drop";
import { classes } from "./classes";
import styles from "./DropZone.module.css";

interface DropZoneProps {
  title: ReactNode;
  hint?: ReactNode;
  /** Types of files, as browsers write them: `image/*,video/*`. */
  accept?: string;
  isMany?: boolean;
  onFiles: (files: DroppedFile[]) => void;
  isDisabled?: boolean;
}

/** A place for files, also by a click or a key. What is dropped elsewhere in the window is for `useDropped`. */
export function DropZone({ title, hint, accept, isMany = true, onFiles, isDisabled }: DropZoneProps) {
  const input = useRef<HTMLInputElement>(null);
  const [isOver, setOver] = useState(false);
  const drop = async (event: DragEvent) => {
    // nobody else gets it
    event.preventDefault();
    setOver(false);
    const files = await readDroppedFiles(event.dataTransfer);
    if (files.length) onFiles(files);
  };
  return (
    <>
      <button
        type="button"
        className={classes(styles.drop, isOver && styles.isOver)}
        disabled={isDisabled}
        onClick={() => input.current?.click()}
        onDragEnter={() => setOver(true)}
        onDragLeave={() => setOver(false)}
        onDragOver={(event) => event.preventDefault()}
        onDrop={(event) => void drop(event)}
      >
        <Upload aria-hidden strokeWidth={1.6} />
        <strong>{title}</strong>
        {hint}
      </button>
      <input
        ref={input}
        type="file"
        hidden
        accept={accept}
        multiple={isMany}
        onChange={(event) => {
          const files = Array.from(event.target.files ?? [], (file) => ({ file, path: file.name }));
          // the same file may be chosen again
          event.target.value = "";
          if (files.length) onFiles(files);
        }}
      />
    </>
  );
}
