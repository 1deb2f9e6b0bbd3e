import { useMutation, useQueryClient } from "@tanstack/react-query";
import { call } from "@/api/client";
import { Problem, sentence } from "@/api/problem";
import { Button, Dialog, ErrorCard, toast } from "@/kit";
import { common } from "@/texts/common";
import { workflows as adding, workflow as texts } from "@/texts/console-workflows";
import { keys, type Workflow } from "../catalogue/queries";
import { MissingList } from "../catalogue/use-workflow-import";

interface ReplaceGraphDialogProps {
  slug: string;
  newGraph: { name: string; graph: unknown };
  onClose: () => void;
  onDone: () => void;
}

/** Confirms that a dropped file replaces the graph. */
export function ReplaceGraphDialog({ slug, newGraph, onClose, onDone }: ReplaceGraphDialogProps) {
  const client = useQueryClient();
  const replace = useMutation({
    mutationFn: async () =>
      (await call<Workflow>("PATCH", `/api/admin/workflows/${encodeURIComponent(slug)}`, { graph: newGraph.graph }))
        .data,
    onSuccess: (data) => {
      client.setQueryData(keys.workflow(slug), data);
      void client.invalidateQueries({ queryKey: keys.workflow(slug) });
      void client.invalidateQueries({ queryKey: keys.fitting(slug) });
      onDone();
      onClose();
      toast({ text: texts.replaced, tone: "good" });
    },
  });
  const missing = replace.error instanceof Problem ? replace.error.missing : [];
  return (
    <Dialog
      isOpen
      onClose={onClose}
      title={texts.replaceTitle(newGraph.name)}
      about={texts.replaceAbout}
      actions={
        <>
          <Button onClick={onClose}>{common.cancel}</Button>
          <Button look="primary" isBusy={replace.isPending} onClick={() => replace.mutate()}>
            {texts.replaceAction}
          </Button>
        </>
      }
    >
      {replace.error && <ErrorCard title={sentence(replace.error)} />}
      {missing.length > 0 && <MissingList missing={missing} advice={adding.missing} />}
    </Dialog>
  );
}
