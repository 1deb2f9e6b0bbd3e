import { type FormEvent, useState } from "react";
import { sentence } from "@/api/problem";
import { Button, Dialog, Field, TextField, toast, toastProblem } from "@/kit";
import { common } from "@/texts/common";
import { gallery as texts } from "@/texts/gallery";
import { useOutputMutations } from "./output-mutations";
import type { Collection } from "./queries";

interface CollectionDialogProps {
  ids: readonly string[];
  collection?: Collection;
  onClose: () => void;
  onMade: (id: string) => void;
}

export function CollectionDialog({ ids, collection, onClose, onMade }: CollectionDialogProps) {
  const verbs = useOutputMutations();
  const [name, setName] = useState(collection?.name ?? "");
  const [problem, setProblem] = useState<string | null>(null);
  const [isBusy, setBusy] = useState(false);
  const words = texts.collections;
  const run = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    try {
      if (collection) await verbs.renameCollection(collection.id, name.trim());
      else {
        const made = await verbs.createCollection(name.trim());
        if (ids.length) {
          await verbs.collect(ids, made.id);
          toast({ text: words.added(ids.length, made.name), tone: "good" });
        } else onMade(made.id);
      }
      onClose();
    } catch (thrown) {
      setProblem(sentence(thrown));
      setBusy(false);
    }
  };
  return (
    <Dialog
      isOpen
      onClose={onClose}
      title={collection ? words.rename : words.create}
      {...(ids.length > 0 && { about: words.createHint })}
      actions={
        <>
          <Button onClick={onClose}>{common.cancel}</Button>
          <Button type="submit" form="collection" look="primary" isBusy={isBusy} disabled={!name.trim()}>
            {collection ? words.save : words.make}
          </Button>
        </>
      }
    >
      <form id="collection" onSubmit={(event) => void run(event)}>
        <Field name={words.label} problem={problem}>
          <TextField
            autoFocus
            value={name}
            maxLength={200}
            placeholder={words.placeholder}
            onChange={(event) => setName(event.target.value)}
          />
        </Field>
      </form>
    </Dialog>
  );
}

interface DeleteCollectionDialogProps {
  collection: Collection;
  onClose: () => void;
  onRemoved: () => void;
}

export function DeleteCollectionDialog({ collection, onClose, onRemoved }: DeleteCollectionDialogProps) {
  const verbs = useOutputMutations();
  const words = texts.collections;
  const run = async () => {
    try {
      await verbs.removeCollection(collection.id);
      toast({ text: words.removed(collection.name), tone: "good" });
      onRemoved();
      onClose();
    } catch (thrown) {
      toastProblem(thrown);
    }
  };
  return (
    <Dialog
      isOpen
      onClose={onClose}
      title={words.removeTitle(collection.name)}
      about={words.removeAbout}
      actions={
        <>
          <Button onClick={onClose}>{common.cancel}</Button>
          <Button look="danger" onClick={() => void run()}>
            {words.remove}
          </Button>
        </>
      }
    />
  );
}
