import { FolderOpen } from "lucide-react";
import { useState } from "react";
import { Button, TextField } from "@/kit";
import { useFieldProps } from "@/kit/Field";
import { folders as texts } from "@/texts/folders";
import { FolderDialog } from "./FolderDialog";
import styles from "./folders.module.css";

interface FolderFieldProps {
  /** What the folder is for, as the button's name. */
  name: string;
  value: string;
  /** Shown while no folder is chosen. */
  placeholder: string;
  /** Where the dialog starts; with `isInside`, also the folder that the chosen one must be in. */
  start?: string;
  isInside?: boolean;
  /** Whether the name of a new folder may be typed. */
  isEditable?: boolean;
  isDisabled?: boolean;
  onChange: (path: string) => void;
}

/** A folder of the desk's machine, chosen in a dialog. An empty value means the default. */
export function FolderField(props: FolderFieldProps) {
  const { name, value, placeholder, start = "", isInside = false, isEditable = false } = props;
  const { isDisabled = false, onChange } = props;
  const [isOpen, setOpen] = useState(false);
  const field = useFieldProps();
  const choose = (path: string) => {
    setOpen(false);
    onChange(isInside ? path.slice(start.length).replace(/^[\\/]/, "") : path);
  };
  return (
    <div className={styles.field}>
      {isEditable ? (
        <TextField
          value={value}
          maxLength={200}
          placeholder={placeholder}
          onChange={(event) => onChange(event.target.value)}
        />
      ) : (
        <output {...field} className={styles.value} data-empty={!value || undefined} dir="auto">
          {value || placeholder}
        </output>
      )}
      <Button
        size="small"
        icon={FolderOpen}
        disabled={isDisabled}
        aria-label={texts.chooseFor(name)}
        onClick={() => setOpen(true)}
      >
        {texts.choose}
      </Button>
      {value && !isDisabled && !isEditable && (
        <Button size="small" look="quiet" onClick={() => onChange("")}>
          {isInside ? texts.whole : texts.clear}
        </Button>
      )}
      {isOpen && (
        <FolderDialog
          start={isInside || !value ? start : value}
          {...(isInside && { root: start })}
          onChoose={choose}
          onClose={() => setOpen(false)}
        />
      )}
    </div>
  );
}
