import { useNavigate } from "@tanstack/react-router";
import {
  ClipboardCopy,
  Columns2,
  Download,
  FileJson,
  FolderInput,
  FolderPlus,
  ImagePlus,
  Images,
  ListChecks,
  PencilRuler,
  Rows3,
  SlidersHorizontal,
  SquareArrowOutUpRight,
  Star,
  ThumbsDown,
  Trash2,
  Workflow,
} from "lucide-react";
import { workflowUrl } from "@/jobs/ComfyuiLinks";
import { openEditor } from "@/jobs/open-editor";
import type { MenuItems } from "@/kit";
import { useSession } from "@/session/session";
import { gallery as texts } from "@/texts/gallery";
import { job } from "@/texts/job";
import { MAX_COMPARED } from "./Compare";
import type { DialogRequest } from "./GalleryDialog";
import { copyText, useOrigin } from "./InfoPanel";
import { useItem } from "./item-store";
import type { GalleryQuery } from "./queries";
import { NO_FILTER } from "./queries";
import { useCollectionMenu } from "./SelectionBar";
import { save, type useActions } from "./use-actions";

interface ItemMenuOptions {
  actions: ReturnType<typeof useActions>;
  onAsk: (request: DialogRequest) => void;
  onOpen?: (id: string) => void;
  onCompare: (ids: readonly string[]) => void;
  onChange: (query: GalleryQuery) => void;
  onSelect: (id: string, event: { shiftKey: boolean }) => void;
}

export function useItemMenu(ids: readonly string[], given: ItemMenuOptions): MenuItems {
  const { actions, onAsk, onOpen, onCompare, onChange, onSelect } = given;
  const navigate = useNavigate();
  const only = useItem(ids.length === 1 ? (ids[0] ?? "") : "");
  const { path, comfyui } = useOrigin(actions.isDesk ? only : undefined);
  const collecting = useCollectionMenu(ids, actions, onAsk);
  const { verbs } = texts;
  const { recall } = actions;
  const { me } = useSession();
  if (!ids.length) return [];
  const one = only
    ? [
        [
          ...(onOpen ? [{ name: verbs.open, icon: Images, keys: "Enter", run: () => onOpen(only.id) }] : []),
          { name: verbs.select, icon: ListChecks, keys: "x", run: () => onSelect(only.id, { shiftKey: false }) },
          {
            name: verbs.openJob,
            icon: SquareArrowOutUpRight,
            run: () => void navigate({ to: "/jobs/$id", params: { id: only.job_id } }),
          },
          ...(only.batch_id
            ? [
                {
                  name: verbs.sameBatch,
                  icon: Rows3,
                  run: () => onChange({ ...NO_FILTER, batch: only.batch_id ?? "" }),
                },
              ]
            : []),
        ],
        [
          ...(recall ? [{ name: verbs.recall, icon: SlidersHorizontal, keys: "r", run: () => recall(only) }] : []),
          { name: verbs.useAsInput, icon: ImagePlus, run: () => void actions.takeAsInput(only) },
          { name: verbs.download, icon: Download, run: () => actions.download(only) },
          ...(comfyui
            ? [
                {
                  name: job.openInComfyui,
                  icon: Workflow,
                  run: () => void window.open(comfyui, "_blank", "noreferrer"),
                },
              ]
            : []),
          ...(me.has_editor && only.has_graph
            ? [
                {
                  name: job.openInEditor,
                  icon: PencilRuler,
                  run: () => void openEditor({ job_id: only.job_id }),
                },
              ]
            : []),
          ...(actions.isDesk && only.has_graph
            ? [{ name: job.downloadWorkflow, icon: FileJson, run: () => save(workflowUrl(only.job_id)) }]
            : []),
          ...(path
            ? [{ name: verbs.copyPath, icon: ClipboardCopy, run: () => void copyText(path, texts.copiedPath) }]
            : []),
        ],
      ]
    : [
        [
          {
            name: verbs.compare,
            icon: Columns2,
            keys: "v",
            isDisabled: ids.length > MAX_COMPARED,
            run: () => onCompare(ids),
          },
        ],
      ];
  return [
    ...one,
    [
      {
        name: only?.starred ? verbs.unstar : verbs.star,
        icon: Star,
        keys: "s",
        run: () => void actions.mark(ids, "starred"),
      },
      {
        name: only?.rejected ? verbs.unreject : verbs.reject,
        icon: ThumbsDown,
        keys: "d",
        run: () => void actions.mark(ids, "rejected"),
      },
    ],
    ...collecting.map((each) => each.map((item) => ({ icon: FolderPlus, ...item }))),
    [
      ...(only ? [] : [{ name: verbs.downloadZip, icon: Download, run: () => void actions.zip(ids) }]),
      ...(actions.isDesk
        ? [{ name: verbs.copyTo, icon: FolderInput, run: () => onAsk({ kind: "copy" as const, ids }) }]
        : []),
      {
        name: verbs.delete,
        icon: Trash2,
        keys: "Delete",
        isDanger: true,
        run: () => onAsk({ kind: "delete" as const, ids }),
      },
    ],
  ];
}
