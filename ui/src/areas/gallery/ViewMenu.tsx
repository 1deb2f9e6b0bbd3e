import { ArrowDownWideNarrow } from "lucide-react";
import { Button, Menu } from "@/kit";
import { gallery as texts } from "@/texts/gallery";
import styles from "./CollectionsButton.module.css";
import type { Change } from "./Filters";
import { type GalleryQuery, GROUPINGS } from "./queries";

export const SIZES = { small: 150, medium: 220, large: 330 };

export type Size = keyof typeof SIZES;

interface ViewMenuProps {
  query: GalleryQuery;
  size: Size;
  onChange: Change;
  onSize: (size: Size) => void;
}

export function ViewMenu({ query, size, onChange, onSize }: ViewMenuProps) {
  const { view } = texts;
  const by = query.by || "day";
  const order = query.sort === "oldest" ? view.oldest : view.newest;
  return (
    <Menu
      items={[
        [
          { name: view.newest, isOn: query.sort !== "oldest", run: () => onChange({ sort: "" }) },
          { name: view.oldest, isOn: query.sort === "oldest", run: () => onChange({ sort: "oldest" }) },
        ],
        GROUPINGS.map((each) => ({
          name: view.by[each],
          isOn: by === each,
          run: () => onChange({ by: each === "day" ? "" : each }),
        })),
        (Object.keys(SIZES) as Size[]).map((each) => ({
          name: view.sizes[each],
          isOn: size === each,
          run: () => onSize(each),
        })),
      ]}
    >
      <Button icon={ArrowDownWideNarrow} className={styles.viewButton ?? ""} aria-label={`${view.name}: ${order}`}>
        <span>{order}</span>
      </Button>
    </Menu>
  );
}
