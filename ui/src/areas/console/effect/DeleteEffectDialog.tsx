import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { call } from "@/api/client";
import { sentence } from "@/api/problem";
import { Button, Dialog, ErrorCard, toast } from "@/kit";
import { common } from "@/texts/common";
import { effect as texts } from "@/texts/console-effects";
import { shared } from "@/texts/console-shared";
import { type Effect, keys } from "../catalogue/queries";

interface DeleteEffectDialogProps {
  effect: Effect;
  onClose: () => void;
  onDeleted: () => void;
}

export function DeleteEffectDialog({ effect, onClose, onDeleted }: DeleteEffectDialogProps) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const remove = useMutation({
    mutationFn: () => call("DELETE", `/api/admin/effects/${encodeURIComponent(effect.slug)}`),
    onSuccess: async () => {
      onDeleted();
      toast({ text: shared.deleted(effect.name), tone: "good" });
      await navigate({ to: "/console/effects" });
      client.removeQueries({ queryKey: keys.effect(effect.slug) });
      await client.invalidateQueries({ queryKey: keys.effects });
    },
  });
  return (
    <Dialog
      isOpen
      onClose={onClose}
      title={texts.deleteTitle(effect.name)}
      about={texts.deleteAbout}
      actions={
        <>
          <Button onClick={onClose}>{common.cancel}</Button>
          <Button look="danger" isBusy={remove.isPending} onClick={() => remove.mutate()}>
            {shared.delete}
          </Button>
        </>
      }
    >
      {remove.error && <ErrorCard title={sentence(remove.error)} />}
    </Dialog>
  );
}
