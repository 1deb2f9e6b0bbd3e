import { Check, ChevronDown } from "lucide-react";
import { Select as RadixSelect } from "radix-ui";
import { common } from "@/texts/common";
import { classes } from "./classes";
import { useFieldProps } from "./Field";
import field from "./Field.module.css";
import menu from "./Menu.module.css";
import styles from "./Select.module.css";

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
      <RadixSelect.Trigger {...useFieldProps()} {...rest} className={classes(field.control, styles.select)}>
        <RadixSelect.Value placeholder={<span className={styles.placeholder}>{placeholder}</span>} />
        <RadixSelect.Icon asChild>
          <ChevronDown />
        </RadixSelect.Icon>
      </RadixSelect.Trigger>
      <RadixSelect.Portal>
        <RadixSelect.Content className={menu.menu} position="popper" sideOffset={4} collisionPadding={8} data-owns-keys>
          <RadixSelect.Viewport nonce={pageNonce()}>
            {choices.map((each) => (
              <RadixSelect.Item key={each.value} value={each.value} className={menu.item ?? ""}>
                <span className={menu.itemName}>
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
