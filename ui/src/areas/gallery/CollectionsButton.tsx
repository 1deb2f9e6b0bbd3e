import { useQuery } from "@tanstack/react-query";
import { Folder, FolderPlus, MoreHorizontal, X } from "lucide-react";
import { Popover } from "radix-ui";
import { useState } from "react";
import { Button, classes, IconButton, Menu } from "@/kit";
import overlays from "@/kit/Menu.module.css";
import { Poster } from "@/kit/Poster";
import { gallery as texts } from "@/texts/gallery";
import styles from "./CollectionsButton.module.css";
import type { Change } from "./Filters";
import type { DialogRequest } from "./GalleryDialog";
import { type Collection, collections, type GalleryQuery, NO_FILTER } from "./queries";

interface CollectionsButtonProps {
  query: GalleryQuery;
  onChange: Change;
  onAsk: (request: DialogRequest) => void;
}

export function CollectionsButton({ query, onChange, onAsk }: CollectionsButtonProps) {
  const { data } = useQuery(collections);
  const [isOpen, setOpen] = useState(false);
  const shown = data?.find((each) => each.id === query.collection);
  const words = texts.collections;
  const close = (run: () => void) => () => {
    setOpen(false);
    run();
  };
  return (
    <Popover.Root open={isOpen} onOpenChange={setOpen}>
      <Popover.Trigger asChild>
        <Button
          icon={Folder}
          className={classes(styles.viewButton, query.collection && styles.isOn)}
          aria-label={shown ? `${words.name}: ${shown.name}` : words.name}
        >
          <span>{shown?.name ?? words.name}</span>
        </Button>
      </Popover.Trigger>
      <Popover.Portal>
        <Popover.Content
          className={classes(overlays.menu, styles.collections)}
          align="end"
          sideOffset={4}
          collisionPadding={8}
          aria-label={words.name}
          data-owns-keys
        >
          {data?.length ? (
            <ul>
              {query.collection && (
                <li>
                  <button
                    type="button"
                    className={styles.collection}
                    onClick={close(() => onChange({ collection: "" }))}
                  >
                    <span className={styles.cover}>
                      <X aria-hidden />
                    </span>
                    <span>{words.all}</span>
                  </button>
                </li>
              )}
              {data.map((each) => (
                <li key={each.id} data-on={each.id === query.collection || undefined}>
                  <button
                    type="button"
                    className={styles.collection}
                    onClick={close(() => onChange({ ...NO_FILTER, collection: each.id }))}
                  >
                    <Cover collection={each} />
                    <span>
                      {each.name}
                      <small>{words.count(each.count)}</small>
                    </span>
                  </button>
                  <Menu
                    items={[
                      [
                        { name: words.rename, run: close(() => onAsk({ kind: "rename", collection: each })) },
                        {
                          name: words.remove,
                          isDanger: true,
                          run: close(() => onAsk({ kind: "remove", collection: each })),
                        },
                      ],
                    ]}
                  >
                    <IconButton icon={MoreHorizontal} size="small" name={words.actions(each.name)} />
                  </Menu>
                </li>
              ))}
            </ul>
          ) : (
            <p className={styles.hint}>{words.none}</p>
          )}
          <Button icon={FolderPlus} look="quiet" isWide onClick={close(() => onAsk({ kind: "collect", ids: [] }))}>
            {words.create}
          </Button>
        </Popover.Content>
      </Popover.Portal>
    </Popover.Root>
  );
}

function Cover({ collection: { cover } }: { collection: Collection }) {
  const url = cover && (cover.poster_url ?? (cover.mime_type.startsWith("image/") ? cover.url : null));
  return (
    <span className={styles.cover}>
      {url ? (
        <Poster url={url}>
          <Folder aria-hidden />
        </Poster>
      ) : (
        <Folder aria-hidden />
      )}
    </span>
  );
}
