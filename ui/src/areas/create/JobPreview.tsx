import { ImageIcon } from "lucide-react";
import { number } from "@/texts/common";
import { create as texts } from "@/texts/create";
import { FilePreview } from "./FileInputs";
import type { Form } from "./form";
import styles from "./JobPreview.module.css";
import type { Estimate } from "./queries";
import { excerpt, expandSweep, isCountedByServer, itemLabel, type SweepItem, sweepOf, sweptKeys } from "./sweep";

const MAX_SHOWN = 36;

const MAX_ROWS = 8;

/** Thumbnails of the first jobs. */
export function JobPreview({ form, count, found }: { form: Form; count: number; found: Estimate | null }) {
  const lists = sweepOf(form.choice, form.draft);
  if (count < 2) return null;
  const { choice, draft } = form;
  if (found && isCountedByServer(choice, draft) && (draft.folder === null || sweptKeys(choice, draft).length > 0))
    return <LabelRows labels={found.labels.slice(0, MAX_ROWS)} count={count} />;
  if (form.draft.folder === null && !lists.files.length)
    return <PromptRows items={expandSweep(lists, MAX_ROWS)} count={count} tries={lists.tries} />;
  const names = form.draft.folder !== null ? (found?.inputs ?? []).slice(0, MAX_SHOWN) : null;
  const items = expandSweep(lists, MAX_SHOWN);
  // a folder shows its files, otherwise jobs
  const left = names ? (found?.input_count ?? 0) - names.length : count - items.length;
  return (
    <div>
      <ul className={styles.sheet} aria-label={texts.plan.sheet}>
        {names
          ? names.map((name) => (
              <li key={name} className={styles.cell} title={name}>
                <ImageIcon aria-hidden />
                <span>{name}</span>
              </li>
            ))
          : items.map((item) => (
              <li key={item.number} className={styles.cell} title={itemLabel(item, lists.tries)}>
                {item.file && <FilePreview given={item.file} />}
                {lists.tries > 1 && <span className={styles.attempt}>{item.attempt}</span>}
              </li>
            ))}
      </ul>
      {left > 0 && <p className={styles.andMore}>{texts.plan.andMore(left)}</p>}
    </div>
  );
}

/** Jobs as the server names them. */
function LabelRows({ labels, count }: { labels: readonly string[]; count: number }) {
  return (
    <div>
      <ol className={styles.rows} aria-label={texts.plan.sheet}>
        {labels.map((label, place) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: labels may repeat, and rows do not move
          <li key={place} title={label}>
            <span>{number.format(place + 1)}</span>
            <span>{label}</span>
          </li>
        ))}
      </ol>
      {count > labels.length && <p className={styles.andMore}>{texts.plan.andMore(count - labels.length)}</p>}
    </div>
  );
}

/** Jobs without input files, as text. */
function PromptRows({ items, count, tries }: { items: readonly SweepItem[]; count: number; tries: number }) {
  return (
    <div>
      <ol className={styles.rows} aria-label={texts.plan.sheet}>
        {items.map((item) => (
          <li key={item.number} title={item.prompt ?? ""}>
            <span>{number.format(item.number + 1)}</span>
            <span>{excerpt(item.prompt ?? item.negative ?? "", 80)}</span>
            <span>{tries > 1 && texts.plan.attempt(item.attempt)}</span>
          </li>
        ))}
      </ol>
      {count > items.length && <p className={styles.andMore}>{texts.plan.andMore(count - items.length)}</p>}
    </div>
  );
}
