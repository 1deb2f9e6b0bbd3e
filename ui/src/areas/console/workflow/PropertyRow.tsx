import { ArrowDown, ArrowUp, ChevronDown } from "lucide-react";
import { Switch } from "@/kit";
import { workflow as all, TYPE_NAMES } from "@/texts/console-workflows";
import {
  canRemove,
  changeProperty,
  type FormDefinition,
  humanize,
  isFile,
  moveProperty,
  type Property,
  removeProperty,
} from "../catalogue/builder";
import { nodeName } from "../catalogue/graph";
import { validateProperty } from "../catalogue/property-validation";
import { PropertyForm } from "./PropertyForm";
import styles from "./workflow.module.css";

const texts = all.builder;

interface PropertyRowProps {
  built: FormDefinition;
  property: Property;
  isFirst: boolean;
  isLast: boolean;
  isOpen: boolean;
  problem: string | undefined;
  onOpen: () => void;
  onChange: (next: FormDefinition) => void;
}

export function PropertyRow({ built, property, isFirst, isLast, isOpen, problem, onOpen, onChange }: PropertyRowProps) {
  const { key } = property;
  const name = property.label || humanize(key);
  const isShown = Boolean(property.user_configurable || property.is_primary_input);
  const places = Object.values(built.graph)
    .filter((node) =>
      Object.values(node.inputs).some((value) => typeof value === "string" && value.includes(property.placeholder)),
    )
    .map(nodeName);
  const problems = validateProperty(property);
  const isWrong = problem !== undefined || Object.keys(problems).length > 0;
  const move = (by: 1 | -1) => onChange({ ...built, properties: moveProperty(built.properties, key, by) });
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
            onChange={(next) => onChange(changeProperty(built, key, { user_configurable: next }))}
          />
        )}
      </div>
      {isOpen && (
        <PropertyForm
          property={property}
          problem={problem}
          problems={problems}
          onChange={(part) => onChange(changeProperty(built, key, part))}
          onTakeOut={canRemove(property) ? () => onChange(removeProperty(built, key)) : null}
        />
      )}
    </li>
  );
}
