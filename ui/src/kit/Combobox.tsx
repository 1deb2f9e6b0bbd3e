import { Command } from "cmdk";
import { Check, ChevronsUpDown } from "lucide-react";
import { Popover } from "radix-ui";
import { useState } from "react";
import { common } from "@/texts/common";
import { classes } from "./classes";
import { type Choice, useAbout } from "./fields";
import styles from "./fields.module.css";
import overlays from "./overlays.module.css";

interface ComboboxProps {
  value: string | null;
  choices: readonly Choice[];
  onChange: (value: string) => void;
  placeholder?: string;
  isDisabled?: boolean;
  "aria-label"?: string;
}

/** One of many, found by typing: models, samplers. */
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
        {...useAbout()}
        {...rest}
        role="combobox"
        aria-expanded={isOpen}
        disabled={isDisabled}
        className={classes(styles.control, styles.select)}
      >
        <span className={classes(!value && styles.placeholder)}>{found?.name ?? value ?? placeholder}</span>
        <ChevronsUpDown aria-hidden />
      </Popover.Trigger>
      <Popover.Portal>
        <Popover.Content
          className={classes(overlays.menu, styles.comboMenu)}
          align="start"
          sideOffset={4}
          collisionPadding={8}
          data-owns-keys
        >
          <Command loop label={common.search}>
            <Command.Input className={styles.comboInput} placeholder={common.search} />
            <Command.List className={styles.comboList}>
              <Command.Empty className={styles.comboEmpty}>{common.nothingFound}</Command.Empty>
              {choices.map((each) => (
                <Command.Item
                  key={each.value}
                  value={each.value}
                  keywords={[each.name ?? each.value]}
                  className={overlays.item}
                  onSelect={() => {
                    onChange(each.value);
                    setOpen(false);
                  }}
                >
                  <span className={overlays.itemName}>{each.name ?? each.value}</span>
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
