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
  /** It stays until what it asks for is done. */
  isFirm?: boolean;
  title: string;
  /** What it is about, in a sentence. */
  about?: ReactNode;
  /** Buttons, the main one last. */
  actions?: ReactNode;
  isWide?: boolean;
  /** `drawer` stands at the right side. */
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
          // not on the first button
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

const TYPED = "input:not([type=checkbox], [type=radio], [type=file], [type=range]), textarea";

/** What is to be typed into has the cursor, also where a menu that closes takes the focus back to its button. */
function Body({ children }: { children: ReactNode }) {
  const body = useRef<HTMLDivElement>(null);
  useEffect(() => {
    // the trap for the focus is set up around it first
    const timer = setTimeout(() => body.current?.querySelector<HTMLElement>(TYPED)?.focus());
    return () => clearTimeout(timer);
  }, []);
  return (
    <div ref={body} className={styles.body}>
      {children}
    </div>
  );
}

export const Drawer = (props: Omit<DialogProps, "kind" | "isWide">) => <Dialog {...props} kind="drawer" />;
