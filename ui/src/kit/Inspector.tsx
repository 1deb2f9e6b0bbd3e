import { X } from "lucide-react";
import { Fragment, type ReactNode } from "react";
import { common } from "@/texts/common";
import { IconButton } from "./Button";
import styles from "./more.module.css";

interface InspectorProps {
  title: ReactNode;
  name: string;
  onClose: () => void;
  children: ReactNode;
}

/** What is known of the one thing that is selected, beside the list; on small screens over it. */
export function Inspector({ title, name, onClose, children }: InspectorProps) {
  return (
    <aside className={styles.inspector} aria-label={name}>
      <div className={styles.inspectorHead}>
        <h2 dir="auto">{title}</h2>
        <IconButton icon={X} name={common.close} keys="Escape" onClick={onClose} />
      </div>
      {children}
    </aside>
  );
}

/** Names and what they are; those without a value are left out. */
export function Facts({ facts }: { facts: readonly (readonly [name: string, value: ReactNode])[] }) {
  return (
    <dl className={styles.facts}>
      {facts
        .filter(([, value]) => value !== null && value !== undefined && value !== "")
        .map(([name, value]) => (
          <Fragment key={name}>
            <dt>{name}</dt>
            <dd dir="auto">{value}</dd>
          </Fragment>
        ))}
    </dl>
  );
}
