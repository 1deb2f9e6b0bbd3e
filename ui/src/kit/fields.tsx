// What people fill in. Each has a name, and may have a hint and a problem, which readers are told, too.

import { Check, ChevronDown, ChevronUp, Minus } from "lucide-react";
import { Checkbox as RadixCheckbox, Select as RadixSelect } from "radix-ui";
import { type ComponentProps, createContext, type ReactNode, useContext, useEffect, useId, useState } from "react";
import type { Whole } from "@/api/json";
import { common } from "@/texts/common";
import { classes } from "./classes";
import styles from "./fields.module.css";
import overlays from "./overlays.module.css";

interface About {
  id: string;
  "aria-describedby": string | undefined;
  "aria-invalid": boolean | undefined;
  "aria-required": boolean | undefined;
}

const Around = createContext<About | null>(null);
/** What the field around a control says of it. */
export const useAbout = (): Partial<About> => useContext(Around) ?? {};

interface FieldProps {
  name: ReactNode;
  /** At the other end of its line. */
  aside?: ReactNode;
  hint?: ReactNode;
  problem?: string | null | undefined;
  isRequired?: boolean;
  children: ReactNode;
}

export function Field({ name, aside, hint, problem, isRequired, children }: FieldProps) {
  const id = useId();
  const about = {
    id,
    "aria-describedby": classes(hint ? `${id}-hint` : null, problem && `${id}-problem`) || undefined,
    "aria-invalid": problem ? true : undefined,
    "aria-required": isRequired || undefined,
  };
  return (
    <div className={styles.field}>
      <div className={styles.top}>
        <label className={styles.label} htmlFor={id}>
          {name}
        </label>
        {aside && <span className={styles.aside}>{aside}</span>}
      </div>
      <Around.Provider value={about}>{children}</Around.Provider>
      {hint && (
        <p className={styles.hint} id={`${id}-hint`}>
          {hint}
        </p>
      )}
      {problem && (
        <p className={styles.problem} id={`${id}-problem`} role="alert">
          {problem}
        </p>
      )}
    </div>
  );
}

export function TextField({ className, ...rest }: ComponentProps<"input">) {
  return <input type="text" {...useAbout()} {...rest} className={classes(styles.control, className)} />;
}

export function TextArea({ className, ...rest }: ComponentProps<"textarea">) {
  return <textarea rows={3} {...useAbout()} {...rest} className={classes(styles.control, className)} />;
}

interface NumberFieldProps {
  value: Whole | null;
  /** null where it is empty; what is no number is not told. */
  onChange: (value: Whole | null) => void;
  minimum?: Whole | null | undefined;
  maximum?: Whole | null | undefined;
  step?: number | null | undefined;
  isWhole?: boolean | undefined;
  placeholder?: string;
  isDisabled?: boolean;
  "aria-label"?: string;
}

/** Text of a number; seeds are whole to their last digit. */
export function numberIn(text: string, isWhole: boolean): Whole | null {
  const bare = text.trim().replace(",", ".");
  if (isWhole && /^[+-]?\d+$/.test(bare)) {
    return Number.isSafeInteger(Number(bare)) ? Number(bare) : BigInt(bare.replace("+", ""));
  }
  const found = Number(bare);
  return bare && Number.isFinite(found) && !isWhole ? found : null;
}

export function NumberField({
  value,
  onChange,
  minimum = null,
  maximum = null,
  step = null,
  isWhole = false,
  placeholder,
  isDisabled,
  ...rest
}: NumberFieldProps) {
  const about = useAbout();
  const [text, setText] = useState(value === null ? "" : String(value));
  const shown = value === null ? "" : String(value);
  useEffect(() => setText((now) => (numberIn(now, isWhole) === value ? now : shown)), [shown, value, isWhole]);
  const by = (direction: 1 | -1) => {
    const size = step ?? (isWhole ? 1 : 0.1);
    const from = value ?? minimum ?? 0;
    const next =
      typeof from === "bigint" ? from + BigInt(direction * Math.round(size)) : rounded(Number(from) + direction * size);
    if ((minimum !== null && next < minimum) || (maximum !== null && next > maximum)) return;
    onChange(next);
  };
  const isWrong = text.trim() !== "" && numberIn(text, isWhole) === null;
  return (
    <Stepped onStep={by} isDisabled={isDisabled}>
      <input
        type="text"
        inputMode={isWhole ? "numeric" : "decimal"}
        {...about}
        {...rest}
        aria-invalid={isWrong || about["aria-invalid"]}
        role="spinbutton"
        aria-valuenow={value === null ? undefined : Number(value)}
        aria-valuemin={minimum === null ? undefined : Number(minimum)}
        aria-valuemax={maximum === null ? undefined : Number(maximum)}
        className={styles.control}
        placeholder={placeholder}
        disabled={isDisabled}
        value={text}
        onChange={(event) => {
          setText(event.target.value);
          const found = numberIn(event.target.value, isWhole);
          if (found !== null || !event.target.value.trim()) onChange(found);
        }}
        onBlur={() => setText(shown)}
        onKeyDown={(event) => {
          if (event.key !== "ArrowUp" && event.key !== "ArrowDown") return;
          event.preventDefault();
          by(event.key === "ArrowUp" ? 1 : -1);
        }}
      />
    </Stepped>
  );
}

interface SteppedProps {
  onStep: (direction: 1 | -1) => void;
  isDisabled?: boolean | undefined;
  children: ReactNode;
}

/** The field of a number, with a way up and down for the pointer; keys do it in the field itself. */
export function Stepped({ onStep, isDisabled, children }: SteppedProps) {
  return (
    <div className={styles.number}>
      {children}
      <span className={styles.steps} aria-hidden>
        <button type="button" tabIndex={-1} disabled={isDisabled} onClick={() => onStep(-1)}>
          <ChevronDown />
        </button>
        <button type="button" tabIndex={-1} disabled={isDisabled} onClick={() => onStep(1)}>
          <ChevronUp />
        </button>
      </span>
    </div>
  );
}

// 0.1 + 0.2 is 0.3 to people
const rounded = (value: number): number => Number(value.toPrecision(12));

export interface Choice {
  value: string;
  name?: string;
}

interface SelectProps {
  value: string | null;
  choices: readonly Choice[];
  onChange: (value: string) => void;
  placeholder?: string;
  isDisabled?: boolean;
  "aria-label"?: string;
}

export function Select({ value, choices, onChange, placeholder = common.choose, isDisabled, ...rest }: SelectProps) {
  return (
    <RadixSelect.Root value={value ?? ""} onValueChange={onChange} disabled={isDisabled ?? false}>
      <RadixSelect.Trigger {...useAbout()} {...rest} className={classes(styles.control, styles.select)}>
        <RadixSelect.Value placeholder={<span className={styles.placeholder}>{placeholder}</span>} />
        <RadixSelect.Icon asChild>
          <ChevronDown />
        </RadixSelect.Icon>
      </RadixSelect.Trigger>
      <RadixSelect.Portal>
        <RadixSelect.Content
          className={overlays.menu}
          position="popper"
          sideOffset={4}
          collisionPadding={8}
          data-owns-keys
        >
          <RadixSelect.Viewport nonce={pageNonce()}>
            {choices.map((each) => (
              <RadixSelect.Item key={each.value} value={each.value} className={overlays.item ?? ""}>
                <span className={overlays.itemName}>
                  <RadixSelect.ItemText>{each.name ?? each.value}</RadixSelect.ItemText>
                </span>
                <RadixSelect.ItemIndicator>
                  <Check aria-hidden />
                </RadixSelect.ItemIndicator>
              </RadixSelect.Item>
            ))}
          </RadixSelect.Viewport>
        </RadixSelect.Content>
      </RadixSelect.Portal>
    </RadixSelect.Root>
  );
}

const pageNonce = (): string => document.querySelector<HTMLMetaElement>('meta[property="csp-nonce"]')?.nonce ?? "";

interface CheckboxProps {
  /** `some`: of many, a few. */
  isOn: boolean | "some";
  onChange: (isOn: boolean) => void;
  name: string;
  isDisabled?: boolean;
}

export function Checkbox({ isOn, onChange, name, isDisabled }: CheckboxProps) {
  return (
    <RadixCheckbox.Root
      className={styles.checkbox}
      checked={isOn === "some" ? "indeterminate" : isOn}
      disabled={isDisabled ?? false}
      onCheckedChange={(next) => onChange(next === true)}
      aria-label={name}
    >
      <RadixCheckbox.Indicator>{isOn === "some" ? <Minus /> : <Check />}</RadixCheckbox.Indicator>
    </RadixCheckbox.Root>
  );
}
