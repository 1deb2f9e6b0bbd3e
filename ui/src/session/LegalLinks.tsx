import { entry as texts } from "@/texts/entry";
import { useBrand } from "./brand";
import styles from "./LegalLinks.module.css";

/** Links to the imprint and the terms of the operator, if there are any. */
export function LegalLinks() {
  const { imprint_url: imprint, terms_url: terms } = useBrand();
  const links = [
    [imprint, texts.imprint],
    [terms, texts.terms],
  ] as const;
  if (!imprint && !terms) return null;
  return (
    <p className={styles.links}>
      {links.map(
        ([url, name]) =>
          url && (
            <a key={name} href={url} target="_blank" rel="noreferrer">
              {name}
            </a>
          ),
      )}
    </p>
  );
}
