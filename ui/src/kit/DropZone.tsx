import { Upload } from "lucide-react";
import { type DragEvent, type ReactNode, useRef, useState } from "react";
import { type DroppedFile, readDroppedFiles } from "@/lib/file-drop";
import { classes } from "./classes";
import styles from "./DropZone.module.css";

interface DropZoneProps {
  title: ReactNode;
  hint?: ReactNode;
  /** Accepted types: `image/*,video/*`. */
  accept?: string;
  isMany?: boolean;
  onFiles: (files: DroppedFile[]) => void;
  isDisabled?: boolean;
}

/** Takes files by drop or file dialog. `useDroppedFiles` takes files dropped elsewhere in the window. */
export function DropZone({ title, hint, accept, isMany = true, onFiles, isDisabled }: DropZoneProps) {
  const input = useRef<HTMLInputElement>(null);
  const [isOver, setOver] = useState(false);
  const drop = async (event: DragEvent) => {
    // hides the event from the window
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
          // allow choosing the same file again
          event.target.value = "";
          if (files.length) onFiles(files);
        }}
      />
    </>
  );
}
