import { Switch as RadixSwitch } from "radix-ui";
import { useId } from "react";
import field from "./Field.module.css";
import styles from "./Switch.module.css";

interface SwitchProps {
  name: string;
  hint?: string;
  isOn: boolean;
  isDisabled?: boolean;
  /** Hides the name visually; screen readers still read it. */
  isBare?: boolean;
  onChange: (isOn: boolean) => void;
}

export function Switch({ name, hint, isOn, isDisabled, isBare = false, onChange }: SwitchProps) {
  const id = useId();
  return (
    <div className={styles.switchRow}>
      <span className={isBare ? "visually-hidden" : styles.switchText}>
        <label className={field.label} htmlFor={id}>
          {name}
        </label>
        {hint && (
          <span className={field.hint} id={`${id}-hint`}>
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
