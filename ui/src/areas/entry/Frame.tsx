import type { ReactNode } from "react";
import { Toasts } from "@/kit";
import { useDocumentTitle } from "@/lib/document-title";
import { BrandLogo } from "@/session/BrandLogo";
import { useBrand } from "@/session/brand";
import { LegalLinks } from "@/session/LegalLinks";
import { common } from "@/texts/common";
import { entry as texts } from "@/texts/entry";
import styles from "./entry.module.css";

/** The frame of the sign-in pages. */
export function Frame({ title, children, foot }: { title: string; children: ReactNode; foot?: ReactNode }) {
  useDocumentTitle(title);
  const { name } = useBrand();
  return (
    <main className={styles.page}>
      <div className={styles.brand}>
        <BrandLogo size={36} />
        <span>{name ?? common.name}</span>
      </div>
      <section className={styles.card}>
        <h1 className={styles.title}>{title}</h1>
        {children}
      </section>
      <div className={styles.foot}>{foot ?? (name === null && <p>{texts.tagline}</p>)}</div>
      <LegalLinks />
      <Toasts />
    </main>
  );
}
