import { type ReactNode, useState } from "react";
import { Button, Checkbox, Dialog } from "@/kit";
import { queue as texts } from "@/texts/queue";
import styles from "./ConfirmDialog.module.css";

export interface Question {
  title: string;
  text: string;
  yes: string;
  no?: string;
  isDanger?: boolean;
  /** Files that will be deleted. */
  files?: readonly string[];
  /** Label of an additional checkbox. */
  option?: string;
}

export interface Confirmation {
  isOptionOn: boolean;
}

export type Confirm = (question: Question) => Promise<Confirmation | null>;

interface OpenQuestion extends Question {
  answer: (confirmation: Confirmation | null) => void;
}

const MAX_FILES = 5;

/** Asks for confirmation; resolves to null if the user declines. The caller renders `dialog`. */
export function useConfirm(): { confirm: Confirm; dialog: ReactNode } {
  const [open, setOpen] = useState<OpenQuestion | null>(null);
  const [isOptionOn, setOptionOn] = useState(false);
  const confirm: Confirm = (question) =>
    new Promise((answer) => {
      setOptionOn(false);
      setOpen({ ...question, answer });
    });
  const close = (confirmation: Confirmation | null) => {
    open?.answer(confirmation);
    setOpen(null);
  };
  const dialog = (
    <Dialog
      isOpen={open !== null}
      onClose={() => close(null)}
      title={open?.title ?? ""}
      about={open?.text}
      actions={
        <>
          <Button onClick={() => close(null)}>{open?.no ?? texts.ask.keep}</Button>
          <Button
            look={open?.isDanger === false ? "primary" : "danger"}
            autoFocus
            onClick={() => close({ isOptionOn })}
          >
            {open?.yes}
          </Button>
        </>
      }
    >
      <DeletedFiles files={open?.files ?? []} />
      {open?.option && (
        // biome-ignore lint/a11y/noLabelWithoutControl: the label contains the checkbox
        <label className={styles.option}>
          <Checkbox name={open.option} isOn={isOptionOn} onChange={setOptionOn} />
          {open.option}
        </label>
      )}
    </Dialog>
  );
  return { confirm, dialog };
}

function DeletedFiles({ files }: { files: readonly string[] }) {
  if (!files.length) return null;
  const rest = files.length - MAX_FILES;
  return (
    <div className={styles.files}>
      {texts.ask.alsoDeleted}
      <ul>
        {files.slice(0, MAX_FILES).map((each) => (
          <li key={each}>{each}</li>
        ))}
        {rest > 0 && <li>{texts.ask.andMore(rest)}</li>}
      </ul>
    </div>
  );
}
