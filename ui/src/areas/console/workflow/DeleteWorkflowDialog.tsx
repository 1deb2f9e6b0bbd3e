import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { call } from "@/api/client";
import { sentence } from "@/api/problem";
import { Button, Dialog, ErrorCard, toast } from "@/kit";
import { common } from "@/texts/common";
import { shared } from "@/texts/console-shared";
import { workflow as texts } from "@/texts/console-workflows";
import { keys, type Workflow } from "../catalogue/queries";

interface DeleteWorkflowDialogProps {
  workflow: Workflow;
  onClose: () => void;
  onDeleted: () => void;
}

export function DeleteWorkflowDialog({ workflow, onClose, onDeleted }: DeleteWorkflowDialogProps) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const remove = useMutation({
    mutationFn: () => call("DELETE", `/api/admin/workflows/${encodeURIComponent(workflow.slug)}`),
    onSuccess: async () => {
      onDeleted();
      toast({ text: shared.deleted(workflow.name), tone: "good" });
      await navigate({ to: "/console/workflows" });
      client.removeQueries({ queryKey: keys.workflow(workflow.slug) });
      await client.invalidateQueries({ queryKey: keys.workflows });
    },
  });
  return (
    <Dialog
      isOpen
      onClose={onClose}
      title={texts.deleteTitle(workflow.name)}
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
