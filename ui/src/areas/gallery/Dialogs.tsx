import { useQuery } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { sentence } from "@/api/problem";
import { desk } from "@/api/queries";
import { leave } from "@/app/leaving";
import { Button, Dialog, Field, Switch, TextField, toast, toastProblem } from "@/kit";
import { common } from "@/texts/common";
import { gallery as texts } from "@/texts/gallery";
import { aboutJob, type Collection, useVerbs } from "./data";
import styles from "./gallery.module.css";
import { items } from "./items";

/** What is asked before something is done. */
export type Asking =
  | { kind: "delete" | "copy"; ids: readonly string[] }
  /** A new one, for these. */
  | { kind: "collect"; ids: readonly string[] }
  | { kind: "rename" | "remove"; collection: Collection };

interface AskProps {
  asking: Asking;
  onClose: () => void;
  onDeleted: () => void;
  onCollection: (id: string | undefined) => void;
}

export function Ask({ asking, onClose, onDeleted, onCollection }: AskProps) {
  switch (asking.kind) {
    case "delete":
      return <Deleting ids={asking.ids} onClose={onClose} onDeleted={onDeleted} />;
    case "copy":
      return <Copying ids={asking.ids} onClose={onClose} />;
    case "collect":
      return <Naming ids={asking.ids} onClose={onClose} onMade={onCollection} />;
    case "rename":
      return <Naming collection={asking.collection} ids={[]} onClose={onClose} onMade={() => undefined} />;
    case "remove":
      return <Removing collection={asking.collection} onClose={onClose} onRemoved={() => onCollection(undefined)} />;
  }
}

const MOST_NAMED = 5;

function Deleting({ ids, onClose, onDeleted }: { ids: readonly string[]; onClose: () => void; onDeleted: () => void }) {
  const verbs = useVerbs();
  const [keeps, setKeeps] = useState(false);
  const { data: here } = useQuery(desk);
  const only = ids.length === 1 ? items.get(ids[0] ?? "") : undefined;
  const { data: about } = useQuery({ ...aboutJob(only?.job_id ?? ""), enabled: only !== undefined });
  const files = about?.deleted_with_it.map(String) ?? [];
  const { deleting } = texts;
  const go = async () => {
    try {
      const done = await verbs.delete(ids, keeps);
      toast({ text: deleting.done(done.deleted), tone: "good" });
      if (done.left.length) toast({ text: deleting.left(done.left.length), tone: "bad" });
      if (done.refused) toast({ text: deleting.refused(done.refused), tone: "bad" });
    } catch (thrown) {
      toastProblem(thrown);
    }
  };
  const run = () => {
    leave(ids, deleting.goes(ids.length), go);
    onDeleted();
  };
  return (
    <Dialog
      isOpen
      onClose={onClose}
      title={deleting.title(ids.length)}
      about={deleting.about(ids.length)}
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
      {!keeps && files.length > 0 && (
        <div className={styles.files}>
          <p>{deleting.files}</p>
          <ul>
            {files.slice(0, MOST_NAMED).map((each) => (
              <li key={each}>{each}</li>
            ))}
            {files.length > MOST_NAMED && <li>{deleting.andMore(files.length - MOST_NAMED)}</li>}
          </ul>
        </div>
      )}
    </Dialog>
  );
}

function Copying({ ids, onClose }: { ids: readonly string[]; onClose: () => void }) {
  const verbs = useVerbs();
  const [folder, setFolder] = useState("");
  const [problem, setProblem] = useState<string | null>(null);
  const [isBusy, setBusy] = useState(false);
  const { data: here } = useQuery(desk);
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
          <TextField
            autoFocus
            value={folder}
            maxLength={200}
            placeholder={copying.placeholder}
            onChange={(event) => setFolder(event.target.value)}
          />
        </Field>
      </form>
    </Dialog>
  );
}

interface NamingProps {
  ids: readonly string[];
  collection?: Collection;
  onClose: () => void;
  onMade: (id: string) => void;
}

function Naming({ ids, collection, onClose, onMade }: NamingProps) {
  const verbs = useVerbs();
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

interface RemovingProps {
  collection: Collection;
  onClose: () => void;
  onRemoved: () => void;
}

function Removing({ collection, onClose, onRemoved }: RemovingProps) {
  const verbs = useVerbs();
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
