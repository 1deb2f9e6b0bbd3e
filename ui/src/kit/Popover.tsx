import { Popover as RadixPopover } from "radix-ui";
import type { ReactNode } from "react";
import styles from "./Popover.module.css";

/** Wraps a button that closes the popover. */
export const PopoverClose = ({ children }: { children: ReactNode }) => (
  <RadixPopover.Close asChild>{children}</RadixPopover.Close>
);

interface PopoverProps {
  trigger: ReactNode;
  children: ReactNode;
  name: string;
  align?: "start" | "center" | "end";
}

export function Popover({ trigger, children, name, align = "end" }: PopoverProps) {
  return (
    <RadixPopover.Root>
      <RadixPopover.Trigger asChild>{trigger}</RadixPopover.Trigger>
      <RadixPopover.Portal>
        <RadixPopover.Content
          className={styles.popover}
          align={align}
          sideOffset={4}
          collisionPadding={8}
          aria-label={name}
          data-owns-keys
        >
          {children}
        </RadixPopover.Content>
      </RadixPopover.Portal>
    </RadixPopover.Root>
  );
}
