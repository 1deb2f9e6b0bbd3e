import type { ReactNode } from "react";
import { useDocumentTitle } from "@/lib/document-title";
import { breakable } from "./breakable";
import styles from "./Header.module.css";

interface HeaderProps {
  title: string;
  /** Filters, next to the search field. */
  children?: ReactNode;
  search?: ReactNode;
  /** Buttons on the right, the main one last. */
  actions?: ReactNode;
}

/** The header of an area, rendered as its first element. Also sets the title of the tab. */
export function Header({ title, children, search, actions }: HeaderProps) {
  useDocumentTitle(title);
  return (
    <header className={styles.header}>
      <h1 className={styles.title} dir="auto">
        {breakable(title)}
      </h1>
      {search}
      {children && <div className={styles.filters}>{children}</div>}
      {actions && <div className={styles.actions}>{actions}</div>}
    </header>
  );
}
