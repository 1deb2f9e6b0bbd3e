import { useQuery } from "@tanstack/react-query";
import { Contrast, Trash2, Undo2 } from "lucide-react";
import { useEffect, useId, useRef, useState } from "react";
import { get, here } from "@/api/client";
import { Button, Dialog, Skeleton, toastProblem } from "@/kit";
import { Segmented } from "@/kit/Segmented";
import { common } from "@/texts/common";
import { create as texts } from "@/texts/create";
import { type DraftFile, replaceFile, restoreOriginal } from "./drafts";
import { MaskCanvas } from "./MaskCanvas";
import styles from "./mask.module.css";
import { applyAction, loadPicture, type MaskAction } from "./mask-layer";
import { encodePng, isMasked, withMask } from "./mask-png";

interface MaskDialogProps {
  slug: string;
  field: string;
  file: DraftFile;
  onClose: () => void;
}

async function imageOf(file: DraftFile): Promise<HTMLImageElement> {
  // the URL of a stored file may be that of a smaller preview
  const url = file.url?.startsWith("blob:")
    ? file.url
    : here((await get("/api/videos/uploads/{file_id}", { path: { file_id: file.id ?? "" } })).url ?? "");
  // the content security policy does not let `fetch` read a chosen file
  const image = new Image();
  image.crossOrigin = "anonymous";
  image.src = url;
  await image.decode();
  return image;
}

async function load(file: DraftFile) {
  try {
    const masked = await imageOf(file);
    return await loadPicture(file.original ? await imageOf(file.original) : masked, masked);
  } catch {
    throw new Error(texts.mask.notRead(file.name));
  }
}

/** Draws a mask on a picture. The result replaces the input; the original is kept. */
export function MaskDialog({ slug, field, file, onClose }: MaskDialogProps) {
  const { data, error } = useQuery({
    queryKey: ["mask", file.key, file.id] as const,
    queryFn: () => load(file),
    // do not cache: images are large
    gcTime: 0,
    retry: false,
  });
  const layer = useRef<CanvasRenderingContext2D | null>(null);
  const [actions, setActions] = useState<readonly MaskAction[]>([]);
  const [isErasing, setErasing] = useState(false);
  const [brush, setBrush] = useState<number | null>(null);
  const [isSaving, setSaving] = useState(false);
  const id = useId();
  const longer = data ? Math.max(data.picture.width, data.picture.height) : 0;
  const maxBrush = Math.max(2, Math.round(longer / 3));
  const size = brush ?? Math.max(1, Math.round(longer / 16));
  const setSize = (next: number) => setBrush(Math.min(maxBrush, Math.max(1, Math.round(next))));
  // a new list redraws the layer, which makes undo exact
  useEffect(() => {
    const context = layer.current;
    if (!context || !data) return;
    context.putImageData(data.mask, 0, 0);
    for (const action of actions) applyAction(context, action);
  }, [actions, data]);
  const add = (action: MaskAction) => setActions((before) => [...before, action]);
  const undo = () => setActions((before) => before.slice(0, -1));
  const save = async () => {
    const context = layer.current;
    if (!context || !data) return;
    setSaving(true);
    try {
      const { width, height } = data.picture;
      const mask = context.getImageData(0, 0, width, height);
      if (isMasked(mask)) {
        const content = await encodePng(withMask(data.picture, mask));
        const name = texts.mask.fileName((file.original ?? file).name);
        replaceFile(slug, field, file.key, new File([content], name, { type: "image/png" }));
      } else restoreOriginal(slug, field, file.key);
      onClose();
    } catch (thrown) {
      setSaving(false);
      toastProblem(thrown);
    }
  };
  return (
    <Dialog
      isOpen
      isWide
      onClose={onClose}
      title={texts.mask.title((file.original ?? file).name)}
      about={texts.mask.about}
      actions={
        <>
          <Button onClick={onClose}>{common.cancel}</Button>
          <Button look="primary" disabled={!data || isSaving} onClick={save}>
            {texts.mask.use}
          </Button>
        </>
      }
    >
      {error && <p role="alert">{error.message}</p>}
      {!error && !data && <Skeleton height={320} />}
      {data && (
        <div className={styles.editor}>
          <div className={styles.tools}>
            <Segmented
              name={texts.mask.tool}
              value={isErasing ? "erase" : "draw"}
              choices={[
                { value: "draw", name: texts.mask.draw },
                { value: "erase", name: texts.mask.erase },
              ]}
              onChange={(tool) => setErasing(tool === "erase")}
            />
            <label className={styles.size} htmlFor={id}>
              {texts.mask.size}
              <input
                id={id}
                type="range"
                min={1}
                max={maxBrush}
                value={size}
                onChange={(event) => setSize(Number(event.target.value))}
              />
              <output>{texts.mask.pixels(size)}</output>
            </label>
            <span className={styles.buttons}>
              <Button size="small" icon={Undo2} disabled={!actions.length} onClick={undo}>
                {texts.mask.undo}
              </Button>
              <Button size="small" icon={Contrast} onClick={() => add({ kind: "invert" })}>
                {texts.mask.invert}
              </Button>
              <Button size="small" icon={Trash2} onClick={() => add({ kind: "clear" })}>
                {texts.mask.clear}
              </Button>
            </span>
          </div>
          <MaskCanvas
            picture={data.picture}
            layer={layer}
            size={size}
            isErasing={isErasing}
            onStroke={add}
            onSize={setSize}
            onErasing={setErasing}
            onUndo={undo}
          />
          <p className={styles.hint}>{texts.mask.keys}</p>
        </div>
      )}
    </Dialog>
  );
}
