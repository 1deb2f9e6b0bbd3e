import { X } from "lucide-react";
import { Dialog as Radix } from "radix-ui";
import { type ReactNode, useEffect, useRef } from "react";
import { common } from "@/texts/common";
import { IconButton } from "./Button";
import { classes } from "./classes";
import styles from "./Dialog.module.css";

interface DialogProps {
  isOpen: boolean;
  onClose?: () => void;
  /** The user cannot close it. */
  isFirm?: boolean;
  title: string;
  /** Explanation under the title. */
  about?: ReactNode;
  /** Buttons, the main one last. */
  actions?: ReactNode;
  isWide?: boolean;
  /** A `drawer` opens at the right edge. */
  kind?: "dialog" | "drawer";
  children?: ReactNode;
}

export function Dialog({
  isOpen,
  onClose,
  isFirm,
  title,
  about,
  actions,
  isWide,
  kind = "dialog",
  children,
}: DialogProps) {
  return (
    <Radix.Root open={isOpen} onOpenChange={(open) => !open && !isFirm && onClose?.()}>
      <Radix.Portal>
        <Radix.Overlay className={styles.veil} />
        <Radix.Content
          className={classes(styles[kind], isWide && styles.wide)}
          data-owns-keys
          // focus the dialog, not its first button
          onOpenAutoFocus={(event) => {
            event.preventDefault();
            (event.currentTarget as HTMLElement | null)?.focus();
          }}
          {...(!about && { "aria-describedby": undefined })}
        >
          <div className={styles.head}>
            <Radix.Title className={styles.title}>{title}</Radix.Title>
            {!isFirm && (
              <Radix.Close asChild>
                <IconButton icon={X} name={common.close} keys="Escape" />
              </Radix.Close>
            )}
          </div>
          {about && <Radix.Description className={styles.about}>{about}</Radix.Description>}
          <Body>{children}</Body>
          {actions && <div className={styles.foot}>{actions}</div>}
        </Radix.Content>
      </Radix.Portal>
    </Radix.Root>
  );
}

const TEXT_FIELD = "input:not([type=checkbox], [type=radio], [type=file], [type=range]), textarea";

/** Focuses the first text field, even if a closing menu returns the focus to its button. */
function Body({ children }: { children: ReactNode }) {
  const body = useRef<HTMLDivElement>(null);
  useEffect(() => {
    // after the focus trap is set up
    const timer = setTimeout(() => body.current?.querySelector<HTMLElement>(TEXT_FIELD)?.focus());
    return () => clearTimeout(timer);
  }, []);
  return (
    <div ref={body} className={styles.body}>
      {children}
    </div>
  );
}

export const Drawer = (props: Omit<DialogProps, "kind" | "isWide">) => <Dialog {...props} kind="drawer" />;
