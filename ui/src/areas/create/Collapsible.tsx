import { type ComponentProps, useEffect, useState } from "react";

interface CollapsibleProps extends Omit<ComponentProps<"details">, "open" | "onToggle"> {
  /** Something in it must be seen. */
  isNeeded: boolean;
}

/** Opens itself for what must be seen, and never closes itself: one may be typing there. */
export function Collapsible({ isNeeded, children, ...rest }: CollapsibleProps) {
  const [isOpen, setOpen] = useState(isNeeded);
  useEffect(() => {
    if (isNeeded) setOpen(true);
  }, [isNeeded]);
  return (
    <details {...rest} open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
      {children}
    </details>
  );
}
