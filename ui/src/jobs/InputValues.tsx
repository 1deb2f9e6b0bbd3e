import { here } from "@/api/client";
import { textOf } from "@/api/json";
import type { AboutJob, InputValue } from "@/api/types";
import { Heading } from "@/kit";
import { breakable } from "@/kit/breakable";
import { Facts } from "@/kit/Facts";
import { Media } from "@/kit/Media";
import { job as texts } from "@/texts/job";
import styles from "./InputValues.module.css";
import { sortedValues } from "./inputs";
import section from "./section.module.css";

export function InputValues({ about }: { about: AboutJob }) {
  const { shown, rest } = sortedValues(about.inputs);
  if (!shown.length && !rest.length) return null;
  const facts = (some: readonly InputValue[]) =>
    some.map((each) => [each.label, <Value key={each.key} value={each} />] as const);
  return (
    <section className={section.section}>
      <Heading>{texts.values}</Heading>
      <Facts facts={facts(shown)} />
      {rest.length > 0 && (
        <details className={section.fold}>
          <summary>{texts.moreDefaults(rest.length)}</summary>
          <Facts facts={facts(rest)} />
        </details>
      )}
    </section>
  );
}

function Value({ value: { type, value, url } }: { value: InputValue }) {
  const text = textOf(value ?? "");
  if (url) {
    const address = here(url);
    const mime = type === "image" ? "image/*" : type === "video" ? "video/*" : "";
    return (
      <span className={styles.file}>
        {mime && (
          <span className={styles.thumb}>
            <Media file={{ url: address, mime_type: mime }} name="" />
          </span>
        )}
        <a href={address} download={text}>
          {breakable(text)}
        </a>
      </span>
    );
  }
  if (typeof value === "boolean") return value ? texts.yes : texts.no;
  return <span className={styles.value}>{breakable(text)}</span>;
}
