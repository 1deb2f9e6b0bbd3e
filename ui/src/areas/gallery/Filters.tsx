import { useQuery } from "@tanstack/react-query";
import {
  ArrowDownWideNarrow,
  ChevronDown,
  Folder,
  FolderPlus,
  MoreHorizontal,
  Star,
  ThumbsDown,
  X,
} from "lucide-react";
import { Popover } from "radix-ui";
import { useState } from "react";
import { useFilterable } from "@/api/queries";
import { Button, classes, FilterChip, IconButton, Menu } from "@/kit";
import overlays from "@/kit/overlays.module.css";
import { Poster } from "@/kit/Poster";
import { gallery as texts } from "@/texts/gallery";
import type { Asking } from "./Dialogs";
import { type Collection, collections, days, FILTERS, GROUPINGS, isFiltered, KINDS, type Wanted } from "./data";
import styles from "./gallery.module.css";

const MAIN_KINDS = KINDS.slice(0, 2);
const OTHER_KINDS = KINDS.slice(2);

type Change = (next: Wanted) => void;

export const NO_FILTER: Wanted = Object.fromEntries(FILTERS.map((each) => [each, ""]));
export const SIZES = { small: 150, medium: 220, large: 330 };
export type Size = keyof typeof SIZES;

interface FiltersProps {
  wanted: Wanted;
  batchName: string | null;
  onChange: Change;
}

export function Filters({ wanted, batchName, onChange }: FiltersProps) {
  const { filters } = texts;
  const toggle = (name: "mark" | "kind", value: string) => onChange({ [name]: wanted[name] === value ? "" : value });
  return (
    <>
      <FilterChip isOn={!isFiltered(wanted)} onClick={() => onChange(NO_FILTER)}>
        {filters.all}
      </FilterChip>
      {wanted.batch && (
        <Taken name={filters.batch(batchName ?? filters.oneBatch)} onRemove={() => onChange({ batch: "" })} />
      )}
      {wanted.day && <Taken name={texts.day(wanted.day)} onRemove={() => onChange({ day: "" })} />}
      <FilterChip icon={Star} isOn={wanted.mark === "starred"} onClick={() => toggle("mark", "starred")}>
        {filters.starred}
      </FilterChip>
      <FilterChip icon={ThumbsDown} isOn={wanted.mark === "rejected"} onClick={() => toggle("mark", "rejected")}>
        {filters.rejected}
      </FilterChip>
      <span className={styles.divider} aria-hidden />
      {MAIN_KINDS.map((each) => (
        <FilterChip key={each} isOn={wanted.kind === each} onClick={() => toggle("kind", each)}>
          {filters[each]}
        </FilterChip>
      ))}
      <Workflows wanted={wanted} onChange={onChange} />
      {!wanted.day && <Days onChange={onChange} />}
      <Others wanted={wanted} onToggle={toggle} />
    </>
  );
}

interface OthersProps {
  wanted: Wanted;
  onToggle: (name: "mark" | "kind", value: string) => void;
}

/** What is asked for least: a row of all of them is longer than most screens are wide. */
function Others({ wanted, onToggle }: OthersProps) {
  const { filters } = texts;
  const others = [
    { name: filters.unmarked, isOn: wanted.mark === "unmarked", run: () => onToggle("mark", "unmarked") },
    ...OTHER_KINDS.map((each) => ({
      name: filters[each],
      isOn: wanted.kind === each,
      run: () => onToggle("kind", each),
    })),
  ];
  const chosen = others.filter((each) => each.isOn).map((each) => each.name);
  return (
    <Menu align="start" items={[others]}>
      <FilterChip isOn={chosen.length > 0}>
        {chosen.join(", ") || filters.more}
        <ChevronDown aria-hidden />
      </FilterChip>
    </Menu>
  );
}

function Taken({ name, onRemove }: { name: string; onRemove: () => void }) {
  return (
    <FilterChip isOn aria-label={texts.filters.remove(name)} onClick={onRemove}>
      {name}
      <X aria-hidden />
    </FilterChip>
  );
}

function Workflows({ wanted, onChange }: { wanted: Wanted; onChange: Change }) {
  const all = useFilterable();
  const found = all.find((each) => each.slug === wanted.workflow);
  const { filters } = texts;
  if (!all.length && !wanted.workflow) return null;
  return (
    <Menu
      align="start"
      items={[
        [{ name: filters.anyWorkflow, isOn: !wanted.workflow, run: () => onChange({ workflow: "" }) }],
        all.map((each) => ({
          name: each.name,
          isOn: each.slug === wanted.workflow,
          run: () => onChange({ workflow: each.slug }),
        })),
      ]}
    >
      <FilterChip isOn={Boolean(wanted.workflow)}>
        {wanted.workflow ? (found?.name ?? wanted.workflow) : filters.workflow}
        <ChevronDown aria-hidden />
      </FilterChip>
    </Menu>
  );
}

/** The days on which something was made. */
function Days({ onChange }: { onChange: Change }) {
  const { data = [] } = useQuery(days);
  if (data.length < 2) return null;
  return (
    <Menu
      align="start"
      items={[
        data.map((each) => ({
          name: texts.heading(texts.day(each.day), each.count),
          run: () => onChange({ day: each.day }),
        })),
      ]}
    >
      <FilterChip isOn={false}>
        {texts.filters.day}
        <ChevronDown aria-hidden />
      </FilterChip>
    </Menu>
  );
}

interface ViewMenuProps {
  wanted: Wanted;
  size: Size;
  onChange: Change;
  onSize: (size: Size) => void;
}

export function ViewMenu({ wanted, size, onChange, onSize }: ViewMenuProps) {
  const { view } = texts;
  const by = wanted.by ?? "day";
  const order = wanted.sort === "oldest" ? view.oldest : view.newest;
  return (
    <Menu
      items={[
        [
          { name: view.newest, isOn: wanted.sort !== "oldest", run: () => onChange({ sort: "" }) },
          { name: view.oldest, isOn: wanted.sort === "oldest", run: () => onChange({ sort: "oldest" }) },
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

interface CollectionsButtonProps {
  wanted: Wanted;
  onChange: Change;
  onAsk: (asking: Asking) => void;
}

export function CollectionsButton({ wanted, onChange, onAsk }: CollectionsButtonProps) {
  const { data } = useQuery(collections);
  const [isOpen, setOpen] = useState(false);
  const shown = data?.find((each) => each.id === wanted.collection);
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
          className={classes(styles.viewButton, wanted.collection && styles.isOn)}
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
              {wanted.collection && (
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
                <li key={each.id} data-on={each.id === wanted.collection || undefined}>
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
