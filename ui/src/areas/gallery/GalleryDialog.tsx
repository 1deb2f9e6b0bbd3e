import { useQuery } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { sentence } from "@/api/problem";
import { desk } from "@/api/queries";
import { FolderField } from "@/folders/FolderField";
import { Button, Dialog, Field, Switch, TextField, toast, toastProblem } from "@/kit";
import { deleteWithUndo } from "@/kit/undoable-delete";
import { useSession } from "@/session/session";
import { common } from "@/texts/common";
import { gallery as texts } from "@/texts/gallery";
import { CollectionDialog, DeleteCollectionDialog } from "./CollectionDialogs";
import styles from "./gallery.module.css";
import { items } from "./item-store";
import { useOutputMutations } from "./output-mutations";
import { aboutJob, type Collection } from "./queries";

export type DialogRequest =
  | { kind: "delete" | "copy"; ids: readonly string[] }
  /** A new collection for these outputs. */
  | { kind: "collect"; ids: readonly string[] }
  | { kind: "rename" | "remove"; collection: Collection };

interface GalleryDialogProps {
  request: DialogRequest;
  onClose: () => void;
  onDeleted: () => void;
  onCollection: (id: string | undefined) => void;
}

export function GalleryDialog({ request, onClose, onDeleted, onCollection }: GalleryDialogProps) {
  switch (request.kind) {
    case "delete":
      return <DeleteDialog ids={request.ids} onClose={onClose} onDeleted={onDeleted} />;
    case "copy":
      return <CopyDialog ids={request.ids} onClose={onClose} />;
    case "collect":
      return <CollectionDialog ids={request.ids} onClose={onClose} onMade={onCollection} />;
    case "rename":
      return <CollectionDialog collection={request.collection} ids={[]} onClose={onClose} onMade={() => undefined} />;
    case "remove":
      return (
        <DeleteCollectionDialog
          collection={request.collection}
          onClose={onClose}
          onRemoved={() => onCollection(undefined)}
        />
      );
  }
}

function DeleteDialog({
  ids,
  onClose,
  onDeleted,
}: {
  ids: readonly string[];
  onClose: () => void;
  onDeleted: () => void;
}) {
  const verbs = useOutputMutations();
  const [keeps, setKeeps] = useState(false);
  const { data: here } = useQuery(desk);
  const only = ids.length === 1 ? items.get(ids[0] ?? "") : undefined;
  const { data: about } = useQuery({ ...aboutJob(only?.job_id ?? ""), enabled: only !== undefined });
  const copy = only && about?.copies[only.number];
  const { deleting } = texts;
  const go = async () => {
    try {
      const done = await verbs.delete(ids, keeps);
      toast({ text: deleting.done(done.deleted), tone: "good" });
      if (done.not_deleted.length) toast({ text: deleting.notDeleted(done.not_deleted.length), tone: "bad" });
      if (done.refused) toast({ text: deleting.refused(done.refused), tone: "bad" });
    } catch (thrown) {
      toastProblem(thrown);
    }
  };
  const run = () => {
    deleteWithUndo(ids, deleting.pending(ids.length), go);
    onDeleted();
  };
  return (
    <Dialog
      isOpen
      onClose={onClose}
      title={deleting.title(ids.length)}
      about={deleting.about}
      actions={
        <>
          <Button onClick={onClose}>{common.cancel}</Button>
          <Button look="danger" onClick={run}>
            {deleting.run(ids.length)}
          </Button>
        </>
      }
    >
      {here && <Switch name={deleting.keep} isOn={keeps} onChange={setKeeps} />}
      {!keeps && copy && (
        <div className={styles.files}>
          <p>{deleting.file}</p>
          <ul>
            <li>{copy}</li>
          </ul>
        </div>
      )}
    </Dialog>
  );
}

function CopyDialog({ ids, onClose }: { ids: readonly string[]; onClose: () => void }) {
  const verbs = useOutputMutations();
  const [folder, setFolder] = useState("");
  const [problem, setProblem] = useState<string | null>(null);
  const [isBusy, setBusy] = useState(false);
  const { desk: here, isGuest } = useSession();
  const { copying } = texts;
  const run = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    try {
      const done = await verbs.copy(ids, folder.trim());
      toast({ text: copying.done(done.copied, done.folder, done.notCopied), tone: done.notCopied ? "bad" : "good" });
      onClose();
    } catch (thrown) {
      setProblem(sentence(thrown));
      setBusy(false);
    }
  };
  const root = here ? String(here.output_folder) : "";
  return (
    <Dialog
      isOpen
      onClose={onClose}
      title={copying.title(ids.length)}
      about={copying.about}
      actions={
        <>
          <Button onClick={onClose}>{common.cancel}</Button>
          <Button type="submit" form="copy-to" look="primary" isBusy={isBusy} disabled={!folder.trim()}>
            {copying.run}
          </Button>
        </>
      }
    >
      <form id="copy-to" onSubmit={(event) => void run(event)}>
        <Field name={copying.folder} problem={problem} {...(root && { hint: copying.hint(root) })}>
          {isGuest || !root ? (
            <TextField
              autoFocus
              value={folder}
              maxLength={200}
              placeholder={copying.placeholder}
              onChange={(event) => setFolder(event.target.value)}
            />
          ) : (
            <FolderField
              name={copying.folder}
              value={folder}
              placeholder={copying.placeholder}
              start={root}
              isInside
              isEditable
              onChange={setFolder}
            />
          )}
        </Field>
      </form>
    </Dialog>
  );
}
