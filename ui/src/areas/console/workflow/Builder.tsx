import { ArrowDown, ArrowUp, ChevronDown, Plus } from "lucide-react";
import { useState } from "react";
import { parseNumber } from "@/areas/create/values";
import { Button, Field, Select, Switch, TextArea, TextField } from "@/kit";
import { workflow as all, ROLE_NAMES, TYPE_NAMES } from "@/texts/console-workflows";
import {
  type Built,
  canTakeOut,
  changed,
  fixedInputs,
  isFile,
  moved,
  nodeName,
  offered,
  type Property,
  type PropertyType,
  problemsWith,
  ROLES,
  retyped,
  TYPES,
  takenOut,
  wordsOf,
} from "../catalogue/builder";
import { Section, sheet } from "../sheet";
import styles from "./workflow.module.css";

const texts = all.builder;

interface BuilderProps {
  built: Built;
  onChange: (next: Built) => void;
  /** What the server says of properties, by key. */
  problems: Readonly<Record<string, string>>;
}

/** Which inputs of nodes users may set, in which words and order. */
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
          const next = offered(built, nodeId, name);
          onChange(next);
          setOpen(next.properties.at(-1)?.key ?? null);
        }}
      />
    </Section>
  );
}

interface PropertyRowProps {
  built: Built;
  property: Property;
  isFirst: boolean;
  isLast: boolean;
  isOpen: boolean;
  problem: string | undefined;
  onOpen: () => void;
  onChange: (next: Built) => void;
}

function PropertyRow({ built, property, isFirst, isLast, isOpen, problem, onOpen, onChange }: PropertyRowProps) {
  const { key } = property;
  const name = property.label || wordsOf(key);
  const isShown = Boolean(property.user_configurable || property.is_primary_input);
  const places = Object.values(built.graph)
    .filter((node) =>
      Object.values(node.inputs).some((value) => typeof value === "string" && value.includes(property.placeholder)),
    )
    .map(nodeName);
  const problems = problemsWith(property);
  const isWrong = problem !== undefined || Object.keys(problems).length > 0;
  const move = (by: 1 | -1) => onChange({ ...built, properties: moved(built.properties, key, by) });
  const value = property.default_value;
  return (
    <li className={styles.property} data-wrong={isWrong || undefined} data-property={key}>
      <div className={styles.head}>
        <span className={styles.order}>
          <button type="button" aria-label={texts.up(name)} disabled={isFirst} onClick={() => move(-1)}>
            <ArrowUp aria-hidden />
          </button>
          <button type="button" aria-label={texts.down(name)} disabled={isLast} onClick={() => move(1)}>
            <ArrowDown aria-hidden />
          </button>
        </span>
        <button type="button" className={styles.open} aria-expanded={isOpen} onClick={onOpen}>
          <span>
            <strong>{name}</strong>
            <small>
              {TYPE_NAMES[property.type] ?? property.type} ·{" "}
              {texts.key(key, places.length ? [...new Set(places)].join(", ") : texts.nowhere)}
            </small>
          </span>
          {value !== null && value !== undefined && !isFile(property) && (
            <span className={styles.value}>{String(value)}</span>
          )}
          <ChevronDown aria-hidden />
        </button>
        {!property.is_primary_input && (
          <Switch
            name={texts.show(name)}
            isBare
            isOn={isShown}
            onChange={(next) => onChange(changed(built, key, { user_configurable: next }))}
          />
        )}
      </div>
      {isOpen && (
        <Edit
          property={property}
          problem={problem}
          problems={problems}
          onChange={(part) => onChange(changed(built, key, part))}
          onTakeOut={canTakeOut(property) ? () => onChange(takenOut(built, key)) : null}
        />
      )}
    </li>
  );
}

interface EditProps {
  property: Property;
  problem: string | undefined;
  problems: Partial<Record<keyof Property, string>>;
  onChange: (part: Partial<Property>) => void;
  onTakeOut: (() => void) | null;
}

const NONE = "none";

function Edit({ property, problem, problems, onChange, onTakeOut }: EditProps) {
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
            placeholder={wordsOf(property.key)}
            onChange={(event) => onChange({ label: event.target.value || null })}
          />
        </Field>
        <Field name={texts.type}>
          <Select
            value={property.type}
            choices={TYPES.map((value) => ({ value, name: TYPE_NAMES[value] ?? value }))}
            onChange={(next) => onChange(retyped(property, next as PropertyType))}
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

/** What is no number yet stays as it was typed. */
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
  /** What is a number among them stays one. */
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

const MOST_SHOWN = 100;

function OtherInputs({ built, onOffer }: { built: Built; onOffer: (nodeId: string, name: string) => void }) {
  const [search, setSearch] = useState("");
  const inputs = fixedInputs(built);
  if (!inputs.length) return null;
  const wanted = search.toLowerCase();
  const found = inputs.filter((each) => `${each.node} ${each.name} ${each.value}`.toLowerCase().includes(wanted));
  return (
    <details className={styles.fold}>
      <summary>
        <ChevronDown aria-hidden />
        {texts.graph}
        <span>{inputs.length}</span>
      </summary>
      <div className={styles.folded}>
        <p className={sheet.muted}>{texts.graphAbout}</p>
        <TextField
          type="search"
          aria-label={texts.findInput}
          placeholder={texts.findInput}
          value={search}
          onChange={(event) => setSearch(event.target.value)}
        />
        <ul className={styles.inputs} aria-label={texts.graph}>
          {found.slice(0, MOST_SHOWN).map((each) => (
            <li key={`${each.nodeId} ${each.name}`}>
              <span>
                {wordsOf(each.name)}
                <small>
                  {each.node} · {String(each.value)}
                </small>
              </span>
              <Button
                size="small"
                icon={Plus}
                aria-label={texts.offer(each.name, each.node)}
                onClick={() => onOffer(each.nodeId, each.name)}
              >
                {texts.addField}
              </Button>
            </li>
          ))}
        </ul>
      </div>
    </details>
  );
}
