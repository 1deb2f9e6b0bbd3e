import { ImageIcon } from "lucide-react";
import { Media } from "@/kit/Media";
import { effects as texts } from "@/texts/console-effects";
import { State } from "../shared/sheet";
import styles from "./EffectCard.module.css";

interface EffectCardProps {
  name: string;
  tokens: number;
  /** What stands below its name. */
  about: string;
  picture: string | null;
  /** As it is told from its file; null where that is not known, and then it is a picture. */
  mime?: string | null;
  /** Left out where users see it: they see nothing else. */
  isPublished?: boolean;
}

/** An effect as it stands in a gallery. */
export const EffectCard = ({ name, tokens, about, picture, mime, isPublished }: EffectCardProps) => (
  <>
    <span className={styles.picture}>
      {picture ? (
        <Media file={{ url: picture, mime_type: mime ?? mimeOf(picture) }} name="" />
      ) : (
        <span className={styles.none}>
          <ImageIcon aria-hidden strokeWidth={1.4} />
          {texts.noPicture}
        </span>
      )}
    </span>
    <span className={styles.words}>
      <strong title={name}>{name}</strong>
      <span className={styles.line}>
        <span title={about}>{about}</span>
        <span>{texts.price(tokens)}</span>
      </span>
      {isPublished !== undefined && (
        <span>
          <State tone={isPublished ? "good" : "idle"}>{isPublished ? texts.published : texts.draft}</State>
        </span>
      )}
    </span>
  </>
);

/** By the ending of its path. */
export const mimeOf = (url: string): string => (/\.(mp4|webm|mov|m4v)(\?|$)/i.test(url) ? "video/mp4" : "image/png");
