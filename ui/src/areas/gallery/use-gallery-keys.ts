import { useKeys } from "@/lib/keyboard";
import { common } from "@/texts/common";
import { gallery as texts } from "@/texts/gallery";
import type { DialogRequest } from "./GalleryDialog";
import type { Item } from "./item";
import { items } from "./item-store";
import type { Step } from "./layout";
import type { useActions } from "./use-actions";

interface GalleryKeys {
  /** The output in the lightbox. */
  openId: string | undefined;
  isComparing: boolean;
  current: string | null;
  order: readonly string[];
  selectedIds: readonly string[];
  /** The selection, else the focused output. */
  targets: readonly string[];
  actions: ReturnType<typeof useActions>;
  onMove: (step: Step, isExtending?: boolean) => void;
  onJump: (id: string | undefined) => void;
  onCheck: (id: string, event: { shiftKey: boolean }) => void;
  onSelectAll: () => void;
  onClear: () => void;
  onCompare: (ids: readonly string[]) => void;
  onDialog: (request: DialogRequest) => void;
}

const ARROWS: readonly [key: string, name: string, step: Step][] = [
  ["ArrowLeft", texts.keys.left, "left"],
  ["ArrowRight", texts.keys.right, "right"],
  ["ArrowUp", texts.keys.above, "up"],
  ["ArrowDown", texts.keys.below, "down"],
];

function withSingleItem(ids: readonly string[], run: (item: Item) => void): void {
  const item = ids.length === 1 ? items.get(ids[0] ?? "") : undefined;
  if (item) run(item);
}

/** Keyboard shortcuts of the grid, and of the lightbox where they need the gallery. */
export function useGalleryKeys(given: GalleryKeys): void {
  const { openId, isComparing, current, order, selectedIds, targets, actions } = given;
  const { onMove, onJump, onCheck, onSelectAll, onClear, onCompare, onDialog } = given;
  const { keys, verbs } = texts;
  const group = texts.title;
  const recallKey = (ids: readonly string[]) => {
    const { recall } = actions;
    return recall ? [{ keys: "r", name: verbs.recall, group, run: () => withSingleItem(ids, recall) }] : [];
  };
  const mark = (which: "starred" | "rejected") => void (targets.length && actions.mark(targets, which));
  useKeys(
    openId || isComparing
      ? []
      : [
          { keys: "j", name: keys.next, group, run: () => onMove("right") },
          { keys: "k", name: keys.previous, group, run: () => onMove("left") },
          ...ARROWS.map(([key, name, step]) => ({ keys: key, name, group, run: () => onMove(step) })),
          ...ARROWS.map(([key, name, step]) => ({
            keys: `shift+${key}`,
            name: `${verbs.extend}: ${name}`,
            group,
            run: () => onMove(step, true),
          })),
          { keys: "Home", name: keys.first, group, run: () => onJump(order[0]) },
          { keys: "End", name: keys.last, group, run: () => onJump(order.at(-1)) },
          { keys: "x", name: verbs.select, group, run: () => current && onCheck(current, { shiftKey: false }) },
          { keys: "shift+x", name: verbs.extend, group, run: () => current && onCheck(current, { shiftKey: true }) },
          { keys: "mod+a", name: verbs.selectAll, group, run: onSelectAll },
          { keys: "s", name: verbs.star, group, run: () => mark("starred") },
          { keys: "d", name: verbs.reject, group, run: () => mark("rejected") },
          { keys: "v", name: verbs.compare, group, run: () => onCompare(selectedIds) },
          ...recallKey(targets),
          {
            keys: "Delete",
            name: verbs.delete,
            group,
            run: () => targets.length && onDialog({ kind: "delete", ids: targets }),
          },
          { keys: "Escape", name: common.clearSelection, group, run: onClear },
        ],
  );
  useKeys(
    openId && !isComparing
      ? [
          ...recallKey([openId]),
          { keys: "Delete", name: verbs.delete, group, run: () => onDialog({ kind: "delete", ids: [openId] }) },
        ]
      : [],
  );
}
