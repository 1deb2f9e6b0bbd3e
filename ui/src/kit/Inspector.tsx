import { X } from "lucide-react";
import type { ReactNode } from "react";
import { common } from "@/texts/common";
import { IconButton } from "./Button";
import { breakable } from "./breakable";
import styles from "./Inspector.module.css";

interface InspectorProps {
  title: ReactNode;
  name: string;
  onClose: () => void;
  children: ReactNode;
}

/** Details of the selected item, next to the list. Covers the list on small screens. */
export function Inspector({ title, name, onClose, children }: InspectorProps) {
  return (
    <aside className={styles.inspector} aria-label={name}>
      <div className={styles.inspectorHead}>
        <h2 dir="auto">{typeof title === "string" ? breakable(title) : title}</h2>
        <IconButton icon={X} name={common.close} keys="Escape" onClick={onClose} />
      </div>
      {children}
    </aside>
  );
}
