import { useQuery } from "@tanstack/react-query";
import {
  CheckCheck,
  Columns2,
  Download,
  FolderInput,
  FolderMinus,
  FolderPlus,
  SlidersHorizontal,
  Star,
  ThumbsDown,
  Trash2,
} from "lucide-react";
import { Button, IconButton, Menu, type MenuItem } from "@/kit";
import { SelectionTray } from "@/kit/SelectionTray";
import { gallery as texts } from "@/texts/gallery";
import { MAX_COMPARED } from "./Compare";
import type { DialogRequest } from "./GalleryDialog";
import { items } from "./item-store";
import { collections } from "./queries";
import styles from "./SelectionBar.module.css";
import type { useActions } from "./use-actions";

interface SelectionBarProps {
  ids: readonly string[];
  total: number;
  collection: string | undefined;
  actions: ReturnType<typeof useActions>;
  onAll: () => void;
  onClear: () => void;
  onCompare: () => void;
  onAsk: (request: DialogRequest) => void;
}

/** Menu: add to a collection, or create one. */
export function useCollectionMenu(
  ids: readonly string[],
  actions: ReturnType<typeof useActions>,
  onAsk: (request: DialogRequest) => void,
): readonly (readonly MenuItem[])[] {
  const { data = [] } = useQuery(collections);
  const known = ids.map((id) => items.get(id));
  return [
    data.map((each) => ({
      name: each.name,
      isOn: known.length > 0 && known.every((item) => item?.collections.includes(each.id)),
      run: () => void actions.collect(ids, each),
    })),
    [{ name: texts.collections.create, icon: FolderPlus, run: () => onAsk({ kind: "collect", ids }) }],
  ];
}

export function SelectionBar({ ids, total, collection, actions, onAll, onClear, onCompare, onAsk }: SelectionBarProps) {
  const { verbs } = texts;
  const { data } = useQuery(collections);
  const shown = data?.find((each) => each.id === collection);
  const collecting = useCollectionMenu(ids, actions, onAsk);
  const only = ids.length === 1 ? items.get(ids[0] ?? "") : undefined;
  const { recall } = actions;
  const canCompare = ids.length >= 2 && ids.length <= MAX_COMPARED;
  return (
    <div className={styles.trayPlace}>
      <SelectionTray count={ids.length} onClear={onClear}>
        {ids.length < total && (
          <Button look="quiet" icon={CheckCheck} onClick={onAll} title={verbs.selectAll}>
            <span className={styles.word}>{verbs.all(total)}</span>
          </Button>
        )}
        <Button
          look="primary"
          icon={Columns2}
          disabled={!canCompare}
          title={canCompare ? "" : texts.compare.needs}
          onClick={onCompare}
        >
          <span>{verbs.compare}</span>
        </Button>
        <IconButton icon={Star} name={verbs.star} keys="s" onClick={() => void actions.mark(ids, "starred")} />
        <IconButton icon={ThumbsDown} name={verbs.reject} keys="d" onClick={() => void actions.mark(ids, "rejected")} />
        {only && recall && (
          <Button icon={SlidersHorizontal} onClick={() => recall(only)}>
            <span className={styles.word}>{verbs.recall}</span>
          </Button>
        )}
        <Menu items={collecting}>
          <Button icon={FolderPlus} aria-label={verbs.addTo}>
            <span className={styles.word}>{verbs.collection}</span>
          </Button>
        </Menu>
        {shown && (
          <IconButton icon={FolderMinus} name={verbs.release} onClick={() => void actions.release(ids, shown)} />
        )}
        <Button icon={Download} aria-label={verbs.downloadZip} onClick={() => void actions.zip(ids)}>
          <span className={styles.word}>{verbs.zip}</span>
        </Button>
        {actions.isDesk && (
          <Button icon={FolderInput} aria-label={verbs.copyTo} onClick={() => onAsk({ kind: "copy", ids })}>
            <span className={styles.word}>{verbs.copyTo}</span>
          </Button>
        )}
        <Button look="danger" icon={Trash2} aria-label={verbs.delete} onClick={() => onAsk({ kind: "delete", ids })}>
          <span className={styles.word}>{verbs.delete}</span>
        </Button>
      </SelectionTray>
    </div>
  );
}
