// Text filters of lists.

import { TextField } from "@/kit";
import { console as texts } from "@/texts/console";
import styles from "./filters.module.css";

interface TypedFilterProps {
  name: string;
  value: string;
  type?: "text" | "email" | "date";
  onChange: (value: string) => void;
}

/** Applied on Enter and on blur. */
export function TypedFilter({ name, value, type = "text", onChange }: TypedFilterProps) {
  return (
    <span className={styles.field}>
      <TextField
        // a cleared filter empties the field
        key={value}
        type={type}
        aria-label={name}
        placeholder={name}
        maxLength={200}
        defaultValue={value}
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
