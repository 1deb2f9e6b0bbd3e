import { useBlocker } from "@tanstack/react-router";
import { useRef } from "react";
import { Button, Dialog } from "@/kit";
import { shared } from "@/texts/console-shared";

interface UnsavedChangesOptions {
  /** Whether there is something to lose. */
  isDirty: boolean;
  /** Whether it is lost with the tab, too: one address holds it else. */
  isOfTab?: boolean;
}

interface Guard {
  /** From now on nothing is asked: what was edited is gone. */
  letGo: () => void;
  dialog: React.ReactNode;
}

/** Asks before what was not saved is left, by a link, a key, the browser's own buttons or a closed tab. */
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
