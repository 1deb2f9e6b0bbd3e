import { Check, Minus } from "lucide-react";
import { Checkbox as RadixCheckbox } from "radix-ui";
import styles from "./Checkbox.module.css";

interface CheckboxProps {
  /** `some`: partly selected. */
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
