import { Check, Copy } from "lucide-react";
import { useState } from "react";
import { common } from "@/texts/common";
import { Button } from "./Button";
import styles from "./CopyField.module.css";
import { writeClipboard } from "./clipboard";
import { toast } from "./Toast";

/** A read-only text with a copy button, such as a secret that is shown once. */
export function CopyField({ name, value }: { name: string; value: string }) {
  const [isCopied, setCopied] = useState(false);
  const copy = async () => {
    if (await writeClipboard(value)) setCopied(true);
    else toast({ text: common.notCopied, tone: "bad" });
  };
  return (
    <div className={styles.copy}>
      <input
        type="text"
        readOnly
        value={value}
        aria-label={name}
        spellCheck={false}
        onFocus={(event) => event.currentTarget.select()}
      />
      <Button icon={isCopied ? Check : Copy} onClick={() => void copy()}>
        {isCopied ? common.copied : common.copy}
      </Button>
    </div>
  );
}
