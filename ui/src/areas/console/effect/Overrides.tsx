import { useRef, useState } from "react";
import { parseNumber } from "@/areas/create/values";
import { Button, Field, Progress, Select, Switch, TextArea, TextField, toastProblem } from "@/kit";
import { Combobox } from "@/kit/Combobox";
import { effect as texts } from "@/texts/console-effects";
import { humanize, isFile, type Property } from "../catalogue/builder";
import { uploadAsset } from "../catalogue/queries";
import { Section, sheet } from "../shared/sheet";
import styles from "./effect.module.css";

type Values = Readonly<Record<string, unknown>>;

interface OverridesProps {
  properties: readonly Property[];
  overrides: Values;
  onChange: (next: Values) => void;
  problems: Readonly<Record<string, string>>;
}

const MANY = 12;

/** Initial value of an override. */
export function firstValue(property: Property): unknown {
  const own = property.default_value ?? null;
  if (own !== null) return own;
  if (property.type === "boolean") return false;
  if (property.type === "number") return property.minimum ?? 0;
  if (property.type === "choice") return property.choices?.[0] ?? "";
  return "";
}

/** Overrides of workflow values. */
export function Overrides({ properties, overrides, onChange, problems }: OverridesProps) {
  const settable = properties.filter((each) => !each.is_primary_input);
  const without = (key: string): Values =>
    Object.fromEntries(Object.entries(overrides).filter(([each]) => each !== key));
  return (
    <Section title={texts.values} about={settable.length ? texts.valuesAbout : texts.noValues}>
      <ul className={styles.values}>
        {settable.map((each) => {
          const name = each.label || humanize(each.key);
          const isSet = each.key in overrides;
          const own = each.default_value ?? null;
          const unchanged = own === null || isFile(each) ? texts.asWorkflow : `${texts.asWorkflow}: ${String(own)}`;
          return (
            <li key={each.key} data-value={each.key}>
              <Switch
                name={texts.setValue(name)}
                hint={`${isSet ? "" : `${unchanged} · `}${each.user_configurable ? texts.userMaySet : texts.fixed}`}
                isOn={isSet}
                onChange={(next) => onChange(next ? { ...overrides, [each.key]: firstValue(each) } : without(each.key))}
              />
              {isSet && (
                <Value
                  property={each}
                  name={name}
                  value={overrides[each.key]}
                  problem={problems[`property_overrides.${each.key}`]}
                  onChange={(value) => onChange({ ...overrides, [each.key]: value })}
                />
              )}
            </li>
          );
        })}
      </ul>
    </Section>
  );
}

interface ValueProps {
  property: Property;
  name: string;
  value: unknown;
  problem: string | undefined;
  onChange: (value: unknown) => void;
}

function Value({ property, name, value, problem, onChange }: ValueProps) {
  const [typed, setTyped] = useState<string | null>(null);
  if (isFile(property)) return <FileValue property={property} value={value} problem={problem} onChange={onChange} />;
  const text = value === null || value === undefined ? "" : String(value);
  if (property.type === "boolean") {
    return (
      <Field name={name} problem={problem}>
        <Select
          value={text}
          choices={[
            { value: "true", name: texts.on },
            { value: "false", name: texts.off },
          ]}
          onChange={(next) => onChange(next === "true")}
        />
      </Field>
    );
  }
  if (property.type === "choice") {
    const choices = (property.choices ?? []).map((each) => ({ value: String(each) })).filter((each) => each.value);
    const choose = (next: string) => onChange(property.choices?.find((each) => String(each) === next) ?? next);
    const Chooser = choices.length > MANY ? Combobox : Select;
    return (
      <Field name={name} problem={problem}>
        <Chooser value={text || null} choices={choices} onChange={choose} />
      </Field>
    );
  }
  if (property.type === "number") {
    return (
      <Field name={name} problem={problem}>
        <TextField
          inputMode="decimal"
          autoComplete="off"
          value={typed ?? text}
          onChange={(event) => {
            setTyped(event.target.value);
            const found = parseNumber(event.target.value);
            if (found !== null) onChange(found);
          }}
          onBlur={() => setTyped(null)}
        />
      </Field>
    );
  }
  return (
    <Field name={name} problem={problem}>
      <TextArea rows={2} value={text} onChange={(event) => onChange(event.target.value)} />
    </Field>
  );
}

function FileValue({ property, value, problem, onChange }: Omit<ValueProps, "name">) {
  const chooser = useRef<HTMLInputElement>(null);
  const [part, setPart] = useState<number | null>(null);
  const take = async (file: File | undefined) => {
    if (!file) return;
    setPart(0);
    try {
      onChange(await uploadAsset(file, setPart));
    } catch (thrown) {
      toastProblem(thrown);
    } finally {
      setPart(null);
    }
  };
  const words = texts.uploadFile(property.type);
  return (
    <div className={styles.file}>
      <input
        ref={chooser}
        type="file"
        className="visually-hidden"
        tabIndex={-1}
        aria-label={words}
        accept={`${property.type}/*`}
        onChange={(event) => {
          void take(event.target.files?.[0]);
          event.target.value = "";
        }}
      />
      <Button size="small" isBusy={part !== null} onClick={() => chooser.current?.click()}>
        {words}
      </Button>
      {part !== null ? (
        <Progress value={part} name={words} />
      ) : (
        value !== "" && <span className={sheet.faint}>{`${texts.fileSet}: ${String(value).split("/").pop()}`}</span>
      )}
      {problem && (
        <p role="alert" className={sheet.muted}>
          {problem}
        </p>
      )}
    </div>
  );
}
