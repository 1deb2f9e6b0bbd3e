import { Tabs as Radix } from "radix-ui";
import type { ReactNode } from "react";
import styles from "./Tabs.module.css";

interface TabsProps {
  name: string;
  value: string;
  onChange: (value: string) => void;
  tabs: readonly { value: string; name: ReactNode; content: ReactNode }[];
}

export function Tabs({ name, value, onChange, tabs }: TabsProps) {
  return (
    <Radix.Root value={value} onValueChange={onChange}>
      <Radix.List className={styles.tabs} aria-label={name}>
        {tabs.map((each) => (
          <Radix.Trigger key={each.value} value={each.value} className={styles.tab}>
            {each.name}
          </Radix.Trigger>
        ))}
      </Radix.List>
      {tabs.map((each) => (
        <Radix.Content key={each.value} value={each.value} className={styles.panel}>
          {each.content}
        </Radix.Content>
      ))}
    </Radix.Root>
  );
}
