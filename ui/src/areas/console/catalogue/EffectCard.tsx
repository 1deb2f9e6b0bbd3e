import { ImageIcon } from "lucide-react";
import { Media } from "@/kit/Media";
import { effects as texts } from "@/texts/console-effects";
import { State } from "../shared/sheet";
import styles from "./EffectCard.module.css";

interface EffectCardProps {
  name: string;
  tokens: number;
  /** Whether the price is a formula and `tokens` its minimum. */
  isFrom?: boolean;
  /** Shown below the name. */
  about: string;
  picture: string | null;
  /** Null: derived from the URL. */
  mime?: string | null;
  /** Omit to hide the badge. */
  isPublished?: boolean;
}

/** Card of an effect. */
export const EffectCard = ({ name, tokens, isFrom, about, picture, mime, isPublished }: EffectCardProps) => (
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
        <span>{isFrom ? texts.priceFrom(tokens) : texts.price(tokens)}</span>
      </span>
      {isPublished !== undefined && (
        <span>
          <State tone={isPublished ? "good" : "idle"}>{isPublished ? texts.published : texts.draft}</State>
        </span>
      )}
    </span>
  </>
);

export const mimeOf = (url: string): string => (/\.(mp4|webm|mov|m4v)(\?|$)/i.test(url) ? "video/mp4" : "image/png");
