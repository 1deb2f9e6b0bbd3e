import { useBlocker } from "@tanstack/react-router";
import { useRef } from "react";
import { Button, Dialog } from "@/kit";
import { shared } from "@/texts/console-shared";

interface UnsavedChangesOptions {
  isDirty: boolean;
  /** Also ask when the `tab` parameter changes. */
  isOfTab?: boolean;
}

interface Guard {
  /** Allows leaving without a question, after the item was deleted. */
  letGo: () => void;
  dialog: React.ReactNode;
}

/** Asks before the user leaves unsaved changes, by navigation or by closing the tab. */
export function useUnsavedChanges({ isDirty, isOfTab = false }: UnsavedChangesOptions): Guard {
  const isLetGo = useRef(false);
  const { status, proceed, reset } = useBlocker({
    shouldBlockFn: ({ current, next }) =>
      !isLetGo.current &&
      (current.pathname !== next.pathname || (isOfTab && tabOf(current.search) !== tabOf(next.search))),
    enableBeforeUnload: () => !isLetGo.current,
    disabled: !isDirty,
    withResolver: true,
  });
  return {
    letGo: () => {
      isLetGo.current = true;
    },
    dialog: (
      <Dialog
        isOpen={status === "blocked"}
        onClose={() => reset?.()}
        title={shared.leaving.title}
        about={shared.leaving.about}
        actions={
          <>
            <Button onClick={() => reset?.()}>{shared.leaving.stay}</Button>
            <Button look="danger" onClick={() => proceed?.()}>
              {shared.leaving.leave}
            </Button>
          </>
        }
      />
    ),
  };
}

const tabOf = (search: object): unknown => ("tab" in search ? search.tab : undefined);
