import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { post } from "@/api/client";
import { Button, toast, toastProblem } from "@/kit";
import { SelectionTray } from "@/kit/SelectionTray";
import { dispatches as words } from "@/texts/console-dispatches";
import { consoleKeys } from "../shared/live";
import { Confirm } from "../shared/panels";
import { BULK_ACTIONS, type BulkAction, resultOf } from "./rules";

const texts = words.bulk;

/** Actions for the selected jobs. */
export function SelectedActions({ ids, onClear }: { ids: readonly number[]; onClear: () => void }) {
  const client = useQueryClient();
  const [asked, ask] = useState<BulkAction | null>(null);
  const change = useMutation({
    mutationFn: (action: BulkAction) => post("/api/admin/dispatches/bulk", { body: { action, ids: [...ids] } }),
    onSuccess: ({ data }) => {
      toast({ text: resultOf(data), tone: data.refused.length ? "bad" : "good" });
      onClear();
    },
    onError: toastProblem,
    onSettled: () => {
      ask(null);
      return client.invalidateQueries({ queryKey: consoleKeys.dispatches });
    },
  });
  return (
    <SelectionTray count={ids.length} onClear={onClear}>
      {BULK_ACTIONS.map((action) => (
        <Button key={action} size="small" onClick={() => ask(action)}>
          {texts.actions[action]}
        </Button>
      ))}
      {asked && (
        <Confirm
          isOpen
          onClose={() => ask(null)}
          title={texts.confirm(texts.actions[asked], ids.length)}
          about={texts.about[asked]}
          action={texts.actions[asked]}
          no={texts.no}
          isDanger={asked === "cancel"}
          isBusy={change.isPending}
          onConfirm={() => change.mutate(asked)}
        />
      )}
    </SelectionTray>
  );
}
