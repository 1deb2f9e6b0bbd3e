import type { ReactNode } from "react";
import { Toasts } from "@/kit";
import { Logo } from "@/kit/Logo";
import { useDocumentTitle } from "@/lib/document-title";
import { common } from "@/texts/common";
import { entry as texts } from "@/texts/entry";
import styles from "./entry.module.css";

/** The frame of the sign-in pages. */
export function Frame({ title, children, foot }: { title: string; children: ReactNode; foot?: ReactNode }) {
  useDocumentTitle(title);
  return (
    <main className={styles.page}>
      <div className={styles.brand}>
        <Logo size={36} />
        <span>{common.name}</span>
      </div>
      <section className={styles.card}>
        <h1 className={styles.title}>{title}</h1>
        {children}
      </section>
      <div className={styles.foot}>{foot ?? <p>{texts.tagline}</p>}</div>
      <Toasts />
    </main>
  );
}
