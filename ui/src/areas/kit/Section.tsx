import type { ReactNode } from "react";
import { Heading } from "@/kit";
import styles from "./kit.module.css";

export function Section({ name, children }: { name: string; children: ReactNode }) {
  return (
    <section className={styles.section}>
      <Heading>{name}</Heading>
      {children}
    </section>
  );
}
