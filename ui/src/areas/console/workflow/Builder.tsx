import { ChevronDown } from "lucide-react";
import { useState } from "react";
import { workflow as all } from "@/texts/console-workflows";
import { type FormDefinition, offerInput, type Property } from "../catalogue/builder";
import { Section, sheet } from "../shared/sheet";
import { OtherInputs } from "./OtherInputs";
import { PropertyRow } from "./PropertyRow";
import styles from "./workflow.module.css";

const texts = all.builder;

interface BuilderProps {
  built: FormDefinition;
  onChange: (next: FormDefinition) => void;
  /** Server errors by property key. */
  problems: Readonly<Record<string, string>>;
}

/** Edits the form of a workflow: fields, labels and order. */
export function Builder({ built, onChange, problems }: BuilderProps) {
  const [open, setOpen] = useState<string | null>(null);
  const shown = built.properties.filter((each) => each.user_configurable || each.is_primary_input);
  const hidden = built.properties.filter((each) => !shown.includes(each));
  const list = (properties: readonly Property[], name: string) => (
    <ul className={styles.properties} aria-label={name}>
      {properties.map((each, place) => (
        <PropertyRow
          key={each.key}
          built={built}
          property={each}
          isFirst={place === 0}
          isLast={place === properties.length - 1}
          isOpen={open === each.key}
          problem={problems[each.key]}
          onOpen={() => setOpen(open === each.key ? null : each.key)}
          onChange={onChange}
        />
      ))}
    </ul>
  );
  return (
    <Section title={texts.title} about={texts.about}>
      {shown.length ? list(shown, texts.shown) : <p className={sheet.muted}>{texts.nothingShown}</p>}
      {hidden.length > 0 && (
        <details className={styles.fold} open={hidden.some((each) => each.key === open) || undefined}>
          <summary>
            <ChevronDown aria-hidden />
            {texts.hidden}
            <span>{hidden.length}</span>
          </summary>
          <div className={styles.folded}>
            <p className={sheet.muted}>{texts.hiddenAbout}</p>
            {list(hidden, texts.hidden)}
          </div>
        </details>
      )}
      <OtherInputs
        built={built}
        onOffer={(nodeId, name) => {
          const next = offerInput(built, nodeId, name);
          onChange(next);
          setOpen(next.properties.at(-1)?.key ?? null);
        }}
      />
    </Section>
  );
}
