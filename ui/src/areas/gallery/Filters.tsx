import { useQuery } from "@tanstack/react-query";
import { ChevronDown, Star, ThumbsDown, X } from "lucide-react";
import { useFilterWorkflows } from "@/api/queries";
import { FilterChip, Menu } from "@/kit";
import { gallery as texts } from "@/texts/gallery";
import styles from "./gallery.module.css";
import { days, type GalleryQuery, isFiltered, KINDS, type Kind, type MarkFilter, NO_FILTER } from "./queries";

const MAIN_KINDS = KINDS.slice(0, 2);

const OTHER_KINDS = KINDS.slice(2);

export type Change = (next: GalleryQuery) => void;

interface FiltersProps {
  query: GalleryQuery;
  batchName: string | null;
  onChange: Change;
}

export function Filters({ query, batchName, onChange }: FiltersProps) {
  const { filters } = texts;
  const toggleMark = (mark: MarkFilter) => onChange({ mark: query.mark === mark ? "" : mark });
  const toggleKind = (kind: Kind) => onChange({ kind: query.kind === kind ? "" : kind });
  return (
    <>
      <FilterChip isOn={!isFiltered(query)} onClick={() => onChange(NO_FILTER)}>
        {filters.all}
      </FilterChip>
      {query.batch && (
        <ActiveFilter name={filters.batch(batchName ?? filters.oneBatch)} onRemove={() => onChange({ batch: "" })} />
      )}
      {query.day && <ActiveFilter name={texts.day(query.day)} onRemove={() => onChange({ day: "" })} />}
      <FilterChip icon={Star} isOn={query.mark === "starred"} onClick={() => toggleMark("starred")}>
        {filters.starred}
      </FilterChip>
      <FilterChip icon={ThumbsDown} isOn={query.mark === "rejected"} onClick={() => toggleMark("rejected")}>
        {filters.rejected}
      </FilterChip>
      <span className={styles.divider} aria-hidden />
      {MAIN_KINDS.map((each) => (
        <FilterChip key={each} isOn={query.kind === each} onClick={() => toggleKind(each)}>
          {filters[each]}
        </FilterChip>
      ))}
      <WorkflowFilter query={query} onChange={onChange} />
      {!query.day && <DayFilter onChange={onChange} />}
      <MoreFilters query={query} onMark={toggleMark} onKind={toggleKind} />
    </>
  );
}

interface MoreFiltersProps {
  query: GalleryQuery;
  onMark: (mark: MarkFilter) => void;
  onKind: (kind: Kind) => void;
}

/** Rare filters: a row of all filters does not fit most screens. */
function MoreFilters({ query, onMark, onKind }: MoreFiltersProps) {
  const { filters } = texts;
  const others = [
    { name: filters.unmarked, isOn: query.mark === "unmarked", run: () => onMark("unmarked") },
    ...OTHER_KINDS.map((each) => ({
      name: filters[each],
      isOn: query.kind === each,
      run: () => onKind(each),
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

function ActiveFilter({ name, onRemove }: { name: string; onRemove: () => void }) {
  return (
    <FilterChip isOn aria-label={texts.filters.remove(name)} onClick={onRemove}>
      {name}
      <X aria-hidden />
    </FilterChip>
  );
}

function WorkflowFilter({ query, onChange }: { query: GalleryQuery; onChange: Change }) {
  const all = useFilterWorkflows();
  const found = all.find((each) => each.slug === query.workflow);
  const { filters } = texts;
  if (!all.length && !query.workflow) return null;
  return (
    <Menu
      align="start"
      items={[
        [{ name: filters.anyWorkflow, isOn: !query.workflow, run: () => onChange({ workflow: "" }) }],
        all.map((each) => ({
          name: each.name,
          isOn: each.slug === query.workflow,
          run: () => onChange({ workflow: each.slug }),
        })),
      ]}
    >
      <FilterChip isOn={Boolean(query.workflow)}>
        {query.workflow ? (found?.name ?? query.workflow) : filters.workflow}
        <ChevronDown aria-hidden />
      </FilterChip>
    </Menu>
  );
}

function DayFilter({ onChange }: { onChange: Change }) {
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
