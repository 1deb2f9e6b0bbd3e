import { Download, MoreHorizontal, SlidersHorizontal } from "lucide-react";
import { Button, IconButton, Menu, type MenuItems } from "@/kit";
import { gallery as texts } from "@/texts/gallery";
import styles from "./gallery.module.css";
import { useItem } from "./item-store";
import type { useActions } from "./use-actions";

interface LightboxActionsProps {
  id: string;
  actions: ReturnType<typeof useActions>;
  menu: MenuItems;
}

export function LightboxActions({ id, actions, menu }: LightboxActionsProps) {
  const item = useItem(id);
  const { verbs } = texts;
  const { recall } = actions;
  if (!item) return null;
  return (
    <>
      <span className={styles.wideOnly}>
        {recall && (
          <Button icon={SlidersHorizontal} onClick={() => recall(item)}>
            {verbs.recall}
          </Button>
        )}
        <IconButton icon={Download} name={verbs.download} onClick={() => actions.download(item)} />
      </span>
      <Menu items={menu}>
        <IconButton icon={MoreHorizontal} name={verbs.more} />
      </Menu>
    </>
  );
}
