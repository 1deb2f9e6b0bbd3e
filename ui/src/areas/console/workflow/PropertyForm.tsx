import { useState } from "react";
import { parseNumber } from "@/areas/create/values";
import { Button, Field, Select, Switch, TextArea, TextField } from "@/kit";
import { workflow as all, ROLE_NAMES, TYPE_NAMES } from "@/texts/console-workflows";
import { changeType, humanize, isFile, type Property, type PropertyType, ROLES, TYPES } from "../catalogue/builder";
import { sheet } from "../shared/sheet";
import styles from "./workflow.module.css";

const texts = all.builder;

interface PropertyFormProps {
  property: Property;
  problem: string | undefined;
  problems: Partial<Record<keyof Property, string>>;
  onChange: (part: Partial<Property>) => void;
  onTakeOut: (() => void) | null;
}

const NONE = "none";

export function PropertyForm({ property, problem, problems, onChange, onTakeOut }: PropertyFormProps) {
  const isNumber = property.type === "number";
  const hasFile = isFile(property);
  return (
    <div className={styles.edit}>
      {problem && (
        <p className={sheet.muted} role="alert">
          {problem}
        </p>
      )}
      <div className={sheet.fields}>
        <Field name={texts.label}>
          <TextField
            maxLength={200}
            value={property.label ?? ""}
            placeholder={humanize(property.key)}
            onChange={(event) => onChange({ label: event.target.value || null })}
          />
        </Field>
        <Field name={texts.type}>
          <Select
            value={property.type}
            choices={TYPES.map((value) => ({ value, name: TYPE_NAMES[value] ?? value }))}
            onChange={(next) => onChange(changeType(property, next as PropertyType))}
          />
        </Field>
        <Field name={texts.role} hint={texts.roleHint}>
          <Select
            value={property.role ?? NONE}
            choices={[
              { value: NONE, name: texts.noRole },
              ...ROLES.map((value) => ({ value, name: ROLE_NAMES[value] ?? value })),
            ]}
            onChange={(next) => onChange({ role: next === NONE ? null : next })}
          />
        </Field>
        {!hasFile && <Default property={property} problem={problems.default_value} onChange={onChange} />}
        {property.type in texts.longest && (
          <Bound
            name={texts.longest[property.type as keyof typeof texts.longest]}
            value={property.maximum}
            problem={problems.maximum}
            onChange={(maximum) => onChange({ maximum })}
          />
        )}
        {isNumber && (
          <>
            <Bound name={texts.minimum} value={property.minimum} onChange={(minimum) => onChange({ minimum })} />
            <Bound
              name={texts.maximum}
              value={property.maximum}
              problem={problems.maximum}
              onChange={(maximum) => onChange({ maximum })}
            />
            <Bound
              name={texts.step}
              value={property.step}
              problem={problems.step}
              onChange={(step) => onChange({ step })}
            />
          </>
        )}
      </div>
      {property.type === "choice" && <Choices property={property} problem={problems.choices} onChange={onChange} />}
      <div className={styles.switches}>
        <Switch
          name={texts.required}
          isOn={Boolean(property.required)}
          onChange={(required) => onChange({ required })}
        />
        {isNumber && (
          <Switch
            name={texts.whole}
            isOn={Boolean(property.is_whole)}
            onChange={(is_whole) => onChange({ is_whole })}
          />
        )}
        {hasFile && (
          <Switch
            name={texts.primary}
            isOn={Boolean(property.is_primary_input)}
            onChange={(is_primary_input) => onChange({ is_primary_input })}
          />
        )}
      </div>
      {onTakeOut && (
        <div className={sheet.actions}>
          <Button look="quiet" size="small" onClick={onTakeOut}>
            {texts.takeOut}
          </Button>
        </div>
      )}
    </div>
  );
}

interface PartProps {
  property: Property;
  problem: string | undefined;
  onChange: (part: Partial<Property>) => void;
}

function Default({ property, problem, onChange }: PartProps) {
  const { type } = property;
  const value = property.default_value ?? null;
  const text = value === null ? "" : String(value);
  if (type === "boolean") {
    return (
      <Field name={texts.default} problem={problem}>
        <Select
          value={value === null ? NONE : text}
          choices={[
            { value: NONE, name: texts.noDefault },
            { value: "true", name: texts.on },
            { value: "false", name: texts.off },
          ]}
          onChange={(next) => onChange({ default_value: next === NONE ? null : next === "true" })}
        />
      </Field>
    );
  }
  if (type === "choice") {
    return (
      <Field name={texts.default} problem={problem}>
        <Select
          value={text || null}
          choices={(property.choices ?? []).filter((each) => String(each)).map((each) => ({ value: String(each) }))}
          onChange={(next) =>
            onChange({ default_value: property.choices?.find((each) => String(each) === next) ?? null })
          }
        />
      </Field>
    );
  }
  if (type === "number") {
    return (
      <NumberText
        name={texts.default}
        value={value as number | bigint | null}
        problem={problem}
        onChange={(next) => onChange({ default_value: next })}
      />
    );
  }
  return (
    <Field name={texts.default} problem={problem}>
      <TextArea rows={1} value={text} onChange={(event) => onChange({ default_value: event.target.value })} />
    </Field>
  );
}

interface NumberTextProps {
  name: string;
  value: number | bigint | null | undefined;
  problem?: string | undefined;
  onChange: (value: number | bigint | null) => void;
}

/** Keeps incomplete input as typed. */
function NumberText({ name, value, problem, onChange }: NumberTextProps) {
  const [typed, setTyped] = useState<string | null>(null);
  const shown = value === null || value === undefined ? "" : String(value);
  return (
    <Field name={name} problem={problem}>
      <TextField
        inputMode="decimal"
        autoComplete="off"
        value={typed ?? shown}
        placeholder={texts.noDefault}
        onChange={(event) => {
          const text = event.target.value;
          setTyped(text);
          const found = parseNumber(text);
          if (found !== null || !text.trim()) onChange(found);
        }}
        onBlur={() => setTyped(null)}
      />
    </Field>
  );
}

const Bound = ({
  onChange,
  ...rest
}: Omit<NumberTextProps, "onChange"> & { onChange: (to: number | null) => void }) => (
  <NumberText {...rest} onChange={(next) => onChange(next === null ? null : Number(next))} />
);

function Choices({ property, problem, onChange }: PartProps) {
  const [typed, setTyped] = useState<string | null>(null);
  const choices = property.choices ?? [];
  /** Numbers stay numbers. */
  const known = (line: string) => choices.find((each) => String(each) === line) ?? line;
  return (
    <Field name={texts.choices} hint={texts.choicesHint} problem={problem}>
      <TextArea
        value={typed ?? choices.join("\n")}
        onChange={(event) => {
          setTyped(event.target.value);
          const lines = event.target.value.split("\n").filter((each) => each.trim());
          onChange({ choices: [...new Set(lines)].map(known) });
        }}
        onBlur={() => setTyped(null)}
      />
    </Field>
  );
}
