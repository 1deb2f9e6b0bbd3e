import { useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { Ellipsis, History, Pencil, PencilRuler, Trash2 } from "lucide-react";
import { useState } from "react";
import { patch, remove } from "@/api/client";
import { keys } from "@/api/queries";
import { openEditor } from "@/jobs/open-editor";
import { Button, Dialog, Field, IconButton, Menu, TextField, toast, toastProblem } from "@/kit";
import { writeLocal } from "@/lib/local-storage";
import { useSession } from "@/session/session";
import { common } from "@/texts/common";
import { create as texts } from "@/texts/create";
import { job } from "@/texts/job";
import type { Choice } from "./inputs";
import { LAST_WORKFLOW } from "./last-workflow";
import { VersionsDialog } from "./VersionsDialog";

export function WorkflowMenu({ choice }: { choice: Choice }) {
  const client = useQueryClient();
  const { me } = useSession();
  const navigate = useNavigate({ from: "/create" });
  const [asks, setAsks] = useState<"delete" | "rename" | "versions" | null>(null);
  const [name, setName] = useState(choice.name);
  const close = () => setAsks(null);
  const act = async (work: () => Promise<unknown>, message: string) => {
    try {
      await work();
      close();
      toast({ text: message, tone: "good" });
      await client.invalidateQueries({ queryKey: keys.workflows });
    } catch (thrown) {
      toastProblem(thrown);
    }
  };
  const path = { slug: choice.slug };
  const rename = () =>
    name.trim() &&
    act(() => patch("/api/workflows/{slug}", { path, body: { name: name.trim() } }), texts.delete.renamed);
  const forget = () =>
    act(async () => {
      await remove("/api/workflows/{slug}", { path });
      writeLocal(LAST_WORKFLOW, null);
      await navigate({ search: {} });
    }, texts.delete.deleted(choice.name));
  return (
    <div>
      <Menu
        items={[
          [
            ...(me.has_editor
              ? [{ name: job.openInEditor, icon: PencilRuler, run: () => void openEditor({ workflow: choice.slug }) }]
              : []),
            { name: texts.delete.rename, icon: Pencil, run: () => setAsks("rename") },
            { name: texts.versions.name, icon: History, run: () => setAsks("versions") },
          ],
          [{ name: texts.delete.name, icon: Trash2, isDanger: true, run: () => setAsks("delete") }],
        ]}
      >
        <IconButton icon={Ellipsis} name={texts.delete.menu} size="small" />
      </Menu>
      {asks === "versions" && <VersionsDialog choice={choice} onClose={close} />}
      <Dialog
        isOpen={asks === "delete"}
        onClose={close}
        title={texts.delete.ask(choice.name)}
        about={texts.delete.about}
        actions={
          <>
            <Button onClick={close}>{common.cancel}</Button>
            <Button look="danger" onClick={forget}>
              {texts.presets.deleteIt}
            </Button>
          </>
        }
      />
      <Dialog
        isOpen={asks === "rename"}
        onClose={close}
        title={texts.delete.renameTitle}
        actions={
          <>
            <Button onClick={close}>{common.cancel}</Button>
            <Button look="primary" onClick={rename}>
              {texts.delete.save}
            </Button>
          </>
        }
      >
        <Field name={texts.plan.name}>
          <TextField value={name} maxLength={200} onChange={(event) => setName(event.target.value)} />
        </Field>
      </Dialog>
    </div>
  );
}
