import { Command } from "cmdk";
import { Check, ChevronsUpDown } from "lucide-react";
import { Popover } from "radix-ui";
import { useState } from "react";
import { common } from "@/texts/common";
import styles from "./Combobox.module.css";
import { classes } from "./classes";
import { useFieldProps } from "./Field";
import fieldStyles from "./Field.module.css";
import menu from "./Menu.module.css";
import type { Choice } from "./Select";
import select from "./Select.module.css";

interface ComboboxProps {
  value: string | null;
  choices: readonly Choice[];
  onChange: (value: string) => void;
  placeholder?: string;
  isDisabled?: boolean;
  "aria-label"?: string;
}

/** A choice among many, with a search field: models, samplers. */
export function Combobox({
  value,
  choices,
  onChange,
  placeholder = common.choose,
  isDisabled,
  ...rest
}: ComboboxProps) {
  const [isOpen, setOpen] = useState(false);
  const found = choices.find((each) => each.value === value);
  return (
    <Popover.Root open={isOpen} onOpenChange={setOpen}>
      <Popover.Trigger
        {...useFieldProps()}
        {...rest}
        role="combobox"
        aria-expanded={isOpen}
        disabled={isDisabled}
        className={classes(fieldStyles.control, select.select)}
      >
        <span className={classes(!value && select.placeholder)}>{found?.name ?? value ?? placeholder}</span>
        <ChevronsUpDown aria-hidden />
      </Popover.Trigger>
      <Popover.Portal>
        <Popover.Content className={styles.menu} align="start" sideOffset={4} collisionPadding={8} data-owns-keys>
          <Command loop label={common.search}>
            <Command.Input className={styles.input} placeholder={common.search} />
            <Command.List className={styles.list}>
              <Command.Empty className={styles.empty}>{common.nothingFound}</Command.Empty>
              {choices.map((each) => (
                <Command.Item
                  key={each.value}
                  value={each.value}
                  keywords={[each.name ?? each.value]}
                  className={menu.item}
                  onSelect={() => {
                    onChange(each.value);
                    setOpen(false);
                  }}
                >
                  <span className={menu.itemName}>{each.name ?? each.value}</span>
                  {each.value === value && <Check aria-hidden />}
                </Command.Item>
              ))}
            </Command.List>
          </Command>
        </Popover.Content>
      </Popover.Portal>
    </Popover.Root>
  );
}
