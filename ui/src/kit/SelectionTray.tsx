import { X } from "lucide-react";
import type { ReactNode } from "react";
import { common } from "@/texts/common";
import { IconButton } from "./Button";
import styles from "./SelectionTray.module.css";

interface SelectionTrayProps {
  count: number;
  onClear: () => void;
  /** Actions on the selection. */
  children: ReactNode;
  /** Replaces "3 selected". */
  text?: ReactNode;
}

/** A toolbar at the bottom of the area while items are selected. */
export function SelectionTray({ count, onClear, children, text }: SelectionTrayProps) {
  if (!count) return null;
  return (
    <div className={styles.tray} role="toolbar" aria-label={common.selected(count)}>
      <strong aria-live="polite">{text ?? common.selected(count)}</strong>
      {children}
      <IconButton icon={X} name={common.clearSelection} keys="Escape" onClick={onClear} />
    </div>
  );
}
