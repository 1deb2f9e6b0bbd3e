import { Check, type LucideIcon } from "lucide-react";
import { ContextMenu, DropdownMenu } from "radix-ui";
import { Fragment, type ReactNode } from "react";
import { classes } from "./classes";
import { Kbd } from "./Kbd";
import styles from "./Menu.module.css";

export interface MenuItem {
  name: string;
  icon?: LucideIcon;
  keys?: string;
  isDanger?: boolean;
  isDisabled?: boolean;
  /** For choices: whether the item is the current choice. */
  isOn?: boolean;
  run: () => void;
}

/** Groups of items, with a separator between them. */
export type MenuItems = readonly (readonly MenuItem[])[];

interface MenuProps {
  items: MenuItems;
  /** The button that opens the menu. */
  children: ReactNode;
  align?: "start" | "center" | "end";
}

type Parts = Pick<typeof DropdownMenu, "Item" | "Separator">;

function Items({ items, parts: { Item, Separator } }: { items: MenuItems; parts: Parts }) {
  return items
    .filter((each) => each.length)
    .map((each, index) => (
      <Fragment key={each[0]?.name}>
        {index > 0 && <Separator className={styles.separator} />}
        {each.map(({ name, icon: Icon, keys, isDanger, isDisabled, isOn, run }) => (
          <Item
            key={name}
            className={classes(styles.item, isDanger && styles.itemDanger)}
            disabled={isDisabled ?? false}
            onSelect={run}
          >
            {Icon && <Icon aria-hidden />}
            <span className={styles.itemName}>{name}</span>
            {isOn && <Check aria-hidden />}
            {keys && <Kbd keys={keys} />}
          </Item>
        ))}
      </Fragment>
    ));
}

export function Menu({ items, children, align = "end" }: MenuProps) {
  return (
    <DropdownMenu.Root>
      <DropdownMenu.Trigger asChild>{children}</DropdownMenu.Trigger>
      <DropdownMenu.Portal>
        <DropdownMenu.Content className={styles.menu} align={align} sideOffset={4} collisionPadding={8} data-owns-keys>
          <Items items={items} parts={DropdownMenu} />
        </DropdownMenu.Content>
      </DropdownMenu.Portal>
    </DropdownMenu.Root>
  );
}

/** A menu that opens with a right click or a long press. */
export function RightClickMenu({ items, children }: Omit<MenuProps, "align">) {
  return (
    <ContextMenu.Root>
      <ContextMenu.Trigger asChild>{children}</ContextMenu.Trigger>
      <ContextMenu.Portal>
        <ContextMenu.Content className={styles.menu} collisionPadding={8} data-owns-keys>
          <Items items={items} parts={ContextMenu} />
        </ContextMenu.Content>
      </ContextMenu.Portal>
    </ContextMenu.Root>
  );
}
