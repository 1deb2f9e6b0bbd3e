import { Copy } from "lucide-react";
import { IconButton } from "@/kit";
import { copyText } from "@/kit/clipboard";
import { common } from "@/texts/common";
import styles from "./Command.module.css";

/** A shell command with a copy button. */
export function Command({ text }: { text: string }) {
  return (
    <div className={styles.command}>
      <code>{text}</code>
      <IconButton icon={Copy} name={common.copy} size="small" onClick={() => void copyText(text)} />
    </div>
  );
}
