import { Switch as RadixSwitch } from "radix-ui";
import { useId } from "react";
import styles from "./fields.module.css";

interface SwitchProps {
  name: string;
  hint?: string;
  isOn: boolean;
  isDisabled?: boolean;
  /** Its name is only said to readers: what is around it shows what it is about. */
  isBare?: boolean;
  onChange: (isOn: boolean) => void;
}

export function Switch({ name, hint, isOn, isDisabled, isBare = false, onChange }: SwitchProps) {
  const id = useId();
  return (
    <div className={styles.switchRow}>
      <span className={isBare ? "visually-hidden" : styles.switchText}>
        <label className={styles.label} htmlFor={id}>
          {name}
        </label>
        {hint && (
          <span className={styles.hint} id={`${id}-hint`}>
            {hint}
          </span>
        )}
      </span>
      <RadixSwitch.Root
        id={id}
        className={styles.switch}
        checked={isOn}
        disabled={isDisabled ?? false}
        onCheckedChange={onChange}
        aria-describedby={hint ? `${id}-hint` : undefined}
      >
        <RadixSwitch.Thumb className={styles.thumb} />
      </RadixSwitch.Root>
    </div>
  );
}
