import { type ComponentProps, useEffect, useState } from "react";

interface CollapsibleProps extends Omit<ComponentProps<"details">, "open" | "onToggle"> {
  /** Opens the section when it becomes true. */
  isNeeded: boolean;
}

/** Opens when needed, but never closes while the user may be typing in it. */
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
