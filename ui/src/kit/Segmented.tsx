import { ToggleGroup } from "radix-ui";
import styles from "./Segmented.module.css";

interface SegmentedProps {
  name: string;
  value: string;
  choices: readonly { value: string; name: string }[];
  onChange: (value: string) => void;
}

/** A choice among a few visible options. */
export function Segmented({ name, value, choices, onChange }: SegmentedProps) {
  return (
    <ToggleGroup.Root
      type="single"
      className={styles.segmented}
      aria-label={name}
      value={value}
      onValueChange={(next) => next && onChange(next)}
    >
      {choices.map((each) => (
        <ToggleGroup.Item key={each.value} value={each.value}>
          {each.name}
        </ToggleGroup.Item>
      ))}
    </ToggleGroup.Root>
  );
}
