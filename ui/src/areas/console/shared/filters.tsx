// Text filters of lists.

import { useEffect, useRef } from "react";
import { TextField } from "@/kit";
import { console as texts } from "@/texts/console";
import styles from "./filters.module.css";

interface TypedFilterProps {
  name: string;
  value: string;
  type?: "text" | "email" | "date";
  onChange: (value: string) => void;
}

/** Typing a year passes through earlier ones, such as 0002 and 0020. */
const FIRST_DATE = "2000-01-01";

/** Applied on Enter and on blur; a date also when it is complete or cleared. */
export function TypedFilter({ name, value, type = "text", onChange }: TypedFilterProps) {
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => {
    // The field keeps its focus if the value comes from it.
    if (field.current && field.current.value !== value) field.current.value = value;
  }, [value]);
  return (
    <span className={styles.field}>
      <TextField
        ref={field}
        type={type}
        aria-label={name}
        placeholder={name}
        maxLength={200}
        defaultValue={value}
        onChange={({ target }) => {
          const isWhole = target.value === "" ? !target.validity.badInput : target.value >= FIRST_DATE;
          if (type === "date" && isWhole && target.value !== value) onChange(target.value);
        }}
        onBlur={({ target }) => target.value !== value && onChange(target.value)}
        onKeyDown={({ key, currentTarget }) => {
          if (key === "Enter") currentTarget.blur();
        }}
      />
    </span>
  );
}

interface Period {
  from?: string | undefined;
  to?: string | undefined;
}

export function PeriodFilter({ period, onChange }: { period: Period; onChange: (change: Period) => void }) {
  return (
    <>
      <TypedFilter name={texts.from} type="date" value={period.from ?? ""} onChange={(from) => onChange({ from })} />
      <TypedFilter name={texts.to} type="date" value={period.to ?? ""} onChange={(to) => onChange({ to })} />
    </>
  );
}
