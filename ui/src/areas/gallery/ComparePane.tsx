import { Star, ThumbsDown, X } from "lucide-react";
import { IconButton } from "@/kit";
import type { PlaybackSync } from "@/kit/playback-sync";
import { gallery as texts } from "@/texts/gallery";
import styles from "./Compare.module.css";
import { ComparedMedia } from "./ComparedMedia";
import type { Item } from "./item";
import { useItem } from "./item-store";
import type { Mark } from "./output-mutations";
import { nameOf } from "./Tile";
import viewerStyles from "./viewer.module.css";
import { type View, ZoomPane } from "./ZoomPane";

interface ComparePaneProps {
  id: string;
  letter: string;
  sync: PlaybackSync;
  view: View;
  onView: (change: (view: View) => View) => void;
  onMark: (item: Item, mark: Mark) => void;
  onRemove?: () => void;
}

export function ComparePane({ id, letter, sync, view, onView, onMark, onRemove }: ComparePaneProps) {
  const item = useItem(id);
  const { verbs } = texts;
  return (
    <figure className={styles.pane} data-pane={letter}>
      <div className={styles.paneView}>
        {item && (
          <ZoomPane view={view} onView={onView}>
            <ComparedMedia item={item} sync={sync} />
          </ZoomPane>
        )}
      </div>
      <figcaption className={styles.paneFoot}>
        <span className={styles.letter}>{letter}</span>
        <span className={styles.paneName}>{item ? nameOf(item) : ""}</span>
        {item && item.number > 1 && <span className={styles.paneSeed}>{texts.tile.number(item.number)}</span>}
        {item?.seed != null && <span className={styles.paneSeed}>{`${texts.info.seed} ${String(item.seed)}`}</span>}
        {item && (
          <>
            <IconButton
              icon={Star}
              size="small"
              name={`${item.starred ? verbs.unstar : verbs.star}: ${letter}`}
              isPressed={item.starred}
              className={item.starred ? (viewerStyles.on ?? "") : ""}
              onClick={() => onMark(item, "starred")}
            />
            <IconButton
              icon={ThumbsDown}
              size="small"
              name={`${item.rejected ? verbs.unreject : verbs.reject}: ${letter}`}
              isPressed={item.rejected}
              onClick={() => onMark(item, "rejected")}
            />
          </>
        )}
        {onRemove && <IconButton icon={X} size="small" name={texts.compare.remove(letter)} onClick={onRemove} />}
      </figcaption>
    </figure>
  );
}
