import { useEffect, useRef, useState } from "react";
import { typeOf } from "@/api/uploads";
import { Button, Progress, toast, toastProblem } from "@/kit";
import { DropZone } from "@/kit/DropZone";
import { Media } from "@/kit/Media";
import { effect as texts } from "@/texts/console-effects";
import { uploadAsset } from "../catalogue/queries";
import { Section, sheet } from "../shared/sheet";
import styles from "./effect.module.css";

export interface EffectPicture {
  url: string;
  mime: string;
}

interface PictureSectionProps {
  title: string;
  about: string;
  seen: EffectPicture | null;
  onPath: (path: string | null, picture: EffectPicture | null) => void;
}

export function PictureSection({ title, about, seen, onPath }: PictureSectionProps) {
  const chooser = useRef<HTMLInputElement>(null);
  const [part, setPart] = useState<number | null>(null);
  const kept = useRef<string[]>([]);
  useEffect(
    () => () => {
      for (const each of kept.current) URL.revokeObjectURL(each);
    },
    [],
  );
  const take = async (file: File | undefined) => {
    if (!file) return;
    const mime = typeOf(file);
    if (!/^(image|video)\//.test(mime)) return toast({ text: texts.notMedia(file.name), tone: "bad" });
    setPart(0);
    try {
      const path = await uploadAsset(file, setPart);
      const url = URL.createObjectURL(file);
      kept.current.push(url);
      onPath(path, { url, mime });
    } catch (thrown) {
      toastProblem(thrown);
    } finally {
      setPart(null);
    }
  };
  return (
    <Section title={title} about={about}>
      <input
        ref={chooser}
        type="file"
        className="visually-hidden"
        tabIndex={-1}
        aria-label={title}
        accept="image/*,video/*"
        onChange={(event) => {
          void take(event.target.files?.[0]);
          event.target.value = "";
        }}
      />
      {part !== null && <Progress value={part} name={texts.uploading} />}
      {seen ? (
        <>
          <div className={styles.pictureBox}>
            <Media file={{ url: seen.url, mime_type: seen.mime }} name={title} />
          </div>
          <div className={sheet.actions}>
            <Button size="small" onClick={() => chooser.current?.click()}>
              {texts.replace}
            </Button>
            <Button size="small" look="quiet" onClick={() => onPath(null, null)}>
              {texts.remove}
            </Button>
          </div>
        </>
      ) : (
        <DropZone
          title={texts.drop}
          accept="image/*,video/*"
          isMany={false}
          isDisabled={part !== null}
          onFiles={(files) => void take(files[0]?.file)}
        />
      )}
    </Section>
  );
}
