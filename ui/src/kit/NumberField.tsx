import { ChevronDown, ChevronUp } from "lucide-react";
import { type ReactNode, useEffect, useState } from "react";
import type { Whole } from "@/api/json";
import { useFieldProps } from "./Field";
import fieldStyles from "./Field.module.css";
import styles from "./NumberField.module.css";

interface NumberFieldProps {
  value: Whole | null;
  /** Gets null for an empty field. Not called for invalid text. */
  onChange: (value: Whole | null) => void;
  minimum?: Whole | null | undefined;
  maximum?: Whole | null | undefined;
  step?: number | null | undefined;
  isWhole?: boolean | undefined;
  placeholder?: string;
  isDisabled?: boolean;
  "aria-label"?: string;
}

/** Parses a typed number; null if it is invalid. Integers keep all digits, as 64-bit seeds need. */
export function parseNumber(text: string, isWhole: boolean): Whole | null {
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
  const field = useFieldProps();
  const [text, setText] = useState(value === null ? "" : String(value));
  const shownText = value === null ? "" : String(value);
  useEffect(
    () => setText((now) => (parseNumber(now, isWhole) === value ? now : shownText)),
    [shownText, value, isWhole],
  );
  const stepBy = (direction: 1 | -1) => {
    const size = step ?? (isWhole ? 1 : 0.1);
    const from = value ?? minimum ?? 0;
    const next =
      typeof from === "bigint" ? from + BigInt(direction * Math.round(size)) : rounded(Number(from) + direction * size);
    if ((minimum !== null && next < minimum) || (maximum !== null && next > maximum)) return;
    onChange(next);
  };
  const isInvalid = text.trim() !== "" && parseNumber(text, isWhole) === null;
  return (
    <Stepped onStep={stepBy} isDisabled={isDisabled}>
      <input
        type="text"
        inputMode={isWhole ? "numeric" : "decimal"}
        {...field}
        {...rest}
        aria-invalid={isInvalid || field["aria-invalid"]}
        role="spinbutton"
        aria-valuenow={value === null ? undefined : Number(value)}
        aria-valuemin={minimum === null ? undefined : Number(minimum)}
        aria-valuemax={maximum === null ? undefined : Number(maximum)}
        className={fieldStyles.control}
        placeholder={placeholder}
        disabled={isDisabled}
        value={text}
        onChange={(event) => {
          setText(event.target.value);
          const found = parseNumber(event.target.value, isWhole);
          if (found !== null || !event.target.value.trim()) onChange(found);
        }}
        onBlur={() => setText(shownText)}
        onKeyDown={(event) => {
          if (event.key !== "ArrowUp" && event.key !== "ArrowDown") return;
          event.preventDefault();
          stepBy(event.key === "ArrowUp" ? 1 : -1);
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

/** Adds step buttons to a number input. They are for the pointer; the input handles the arrow keys. */
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

// hides floating-point noise: 0.1 + 0.2 shows as 0.3
const rounded = (value: number): number => Number(value.toPrecision(12));
