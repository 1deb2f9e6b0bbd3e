import { useQuery } from "@tanstack/react-query";
import { CornerLeftUp, Folder, FolderPlus } from "lucide-react";
import { type FormEvent, useState } from "react";
import { get, post } from "@/api/client";
import { sentence } from "@/api/problem";
import { Button, Dialog, Field, Skeleton, Switch, TextField, toastProblem } from "@/kit";
import { common } from "@/texts/common";
import { folders as texts } from "@/texts/folders";
import styles from "./folders.module.css";

interface FolderDialogProps {
  /** The folder that is shown first; empty for the home folder. */
  start: string;
  /** Folders above this one cannot be chosen. */
  root?: string;
  onChoose: (path: string) => void;
  onClose: () => void;
}

const SEPARATOR = /[\\/]$/;

/** Lists and creates folders of the desk's machine, and returns the chosen one. */
export function FolderDialog({ start, root, onChoose, onClose }: FolderDialogProps) {
  const [path, setPath] = useState(start);
  const [showsHidden, setShowsHidden] = useState(false);
  const { data, error, isPending } = useQuery({
    queryKey: ["folders", path, showsHidden] as const,
    queryFn: ({ signal }) => get("/api/desk/folders", { query: { path, hidden: showsHidden }, signal }),
    staleTime: 0,
    retry: false,
  });
  const isTop = !data?.parent || (root !== undefined && data.path === root);
  const separator = data?.path.includes("\\") ? "\\" : "/";
  const join = (name: string) => `${data?.path.replace(SEPARATOR, "")}${separator}${name}`;
  return (
    <Dialog
      isOpen
      onClose={onClose}
      title={texts.title}
      about={texts.about}
      actions={
        <>
          <Button onClick={onClose}>{common.cancel}</Button>
          <Button look="primary" disabled={!data} onClick={() => data && onChoose(data.path)}>
            {texts.useThis}
          </Button>
        </>
      }
    >
      <div className={styles.dialog}>
        <div className={styles.head}>
          <output className={styles.path} aria-label={texts.here} dir="auto">
            {data?.path ?? path}
          </output>
          <Button
            size="small"
            icon={CornerLeftUp}
            disabled={error ? root !== undefined : isTop}
            onClick={() => setPath(data?.parent ?? root ?? "")}
          >
            {texts.up}
          </Button>
        </div>
        {error && <p role="alert">{sentence(error)}</p>}
        {isPending && <Skeleton height={120} />}
        {data && (
          <ul className={styles.list}>
            {data.folders.map((name) => (
              <li key={name}>
                <button type="button" className={styles.folder} onClick={() => setPath(join(name))}>
                  <Folder aria-hidden />
                  <span dir="auto">{name}</span>
                </button>
              </li>
            ))}
            {data.folders.length === 0 && <li className={styles.note}>{texts.none}</li>}
            {data.more > 0 && <li className={styles.note}>{texts.more(data.more)}</li>}
          </ul>
        )}
        {data && <NewFolder key={data.path} join={join} onCreate={setPath} />}
        <Switch name={texts.hidden} isOn={showsHidden} onChange={setShowsHidden} />
      </div>
    </Dialog>
  );
}

function NewFolder({ join, onCreate }: { join: (name: string) => string; onCreate: (path: string) => void }) {
  const [name, setName] = useState<string | null>(null);
  if (name === null)
    return (
      <div>
        <Button size="small" icon={FolderPlus} onClick={() => setName("")}>
          {texts.newFolder}
        </Button>
      </div>
    );
  const create = async (event: FormEvent) => {
    event.preventDefault();
    // the dialog may be inside another form
    event.stopPropagation();
    try {
      onCreate((await post("/api/desk/folders", { body: { path: join(name.trim()) } })).data.path);
    } catch (thrown) {
      toastProblem(thrown);
    }
  };
  return (
    <form onSubmit={(event) => void create(event)}>
      <Field name={texts.newFolder}>
        <div className={styles.head}>
          <TextField autoFocus value={name} maxLength={200} onChange={(event) => setName(event.target.value)} />
          <Button type="submit" disabled={!name.trim()}>
            {texts.create}
          </Button>
        </div>
      </Field>
    </form>
  );
}
