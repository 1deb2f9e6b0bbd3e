import { useQuery } from "@tanstack/react-query";
import { ImageDown } from "lucide-react";
import { type MouseEvent, type RefObject, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import { Button, Field, Select, toast } from "@/kit";
import { breakable } from "@/kit/breakable";
import { gallery as texts } from "@/texts/gallery";
import { drawGrid } from "./grid-picture";
import { items, useItem } from "./item-store";
import { batchGrid } from "./queries";
import styles from "./SweepGrid.module.css";
import { type Axis, cellRatio, cellsOf, defaultView, otherAxes, type View, withAxis } from "./sweep-grid";
import { Tile } from "./Tile";
import { useTilePointer } from "./use-tile-pointer";

const [MIN_CELL, MAX_CELL, GAP, LABELS] = [144, 320, 8, 150];
/** Longer axes are cut: a browser does not show thousands of pictures at once. */
const MAX_SHOWN = 40;
const NO_AXIS = "";

interface SweepGridProps {
  batch: string;
  name: string;
  selected: ReadonlySet<string>;
  onOpen: (id: string, event: MouseEvent) => void;
  onCheck: (id: string, event: MouseEvent) => void;
}

/** The outputs of a batch by the lists that it combines: columns, rows, and a choice for each further list. */
export function SweepGrid({ batch, name, selected, onOpen, onCheck }: SweepGridProps) {
  const { data: grid } = useQuery(batchGrid(batch));
  const [chosen, setChosen] = useState<View | null>(null);
  const [isBusy, setBusy] = useState(false);
  const { hovered, handlers } = useTilePointer({ onOpen, onCheck });
  const view = useMemo(() => chosen ?? defaultView(grid?.axes ?? []), [chosen, grid]);
  const shown = useMemo(() => (grid ? cellsOf(grid, view, MAX_SHOWN) : []), [grid, view]);
  const ids = useMemo(() => shown.flat().filter((each) => each !== null), [shown]);
  useEffect(() => void items.all(ids), [ids]);
  const first = useItem(ids[0] ?? "");
  const scroller = useRef<HTMLDivElement>(null);
  const total = useWidth(scroller, grid !== undefined);
  const axes = grid?.axes ?? [];
  const across = axes[view.x];
  const down = view.y === null ? undefined : axes[view.y];
  const columns = (across?.values ?? []).slice(0, MAX_SHOWN);
  const rows = (down?.values ?? [""]).slice(0, MAX_SHOWN);
  // few columns fill the width
  const free = Math.floor((total - LABELS) / Math.max(1, columns.length)) - GAP;
  const width = Math.min(MAX_CELL, Math.max(MIN_CELL, free));
  const height = Math.round(width / cellRatio(first));
  if (!grid || !across) return null;
  const nameOf = (index: number) => axes[index]?.name ?? "";
  const axisChoices = axes.map((_each, index) => ({ value: String(index), name: nameOf(index) }));
  const save = async () => {
    setBusy(true);
    try {
      const picture = await drawGrid(grid, view, name);
      if (!picture) return toast({ text: texts.sweep.failed, tone: "bad" });
      const link = document.createElement("a");
      link.href = URL.createObjectURL(picture.blob);
      link.download = `${name.replace(/[\\/:*?"<>|]/g, "-") || "grid"}.png`;
      link.click();
      // the download has begun by then
      setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
      if (picture.unread) toast({ text: texts.sweep.notRead(picture.unread), tone: "bad" });
      else toast({ text: texts.sweep.saved, tone: "good" });
    } finally {
      setBusy(false);
    }
  };
  return (
    <div className={styles.area}>
      <div className={styles.bar}>
        <Field name={texts.sweep.columns}>
          <Select
            value={String(view.x)}
            choices={axisChoices}
            onChange={(next) => setChosen(withAxis(view, "x", Number(next)))}
          />
        </Field>
        {axes.length > 1 && (
          <Field name={texts.sweep.rows}>
            <Select
              value={view.y === null ? NO_AXIS : String(view.y)}
              choices={axisChoices}
              onChange={(next) => setChosen(withAxis(view, "y", next === NO_AXIS ? null : Number(next)))}
            />
          </Field>
        )}
        {otherAxes(axes, view).map((index) => (
          <Field key={axes[index]?.key} name={nameOf(index)}>
            <Select
              value={String(view.z[index] ?? 0)}
              choices={(axes[index]?.values ?? []).map((value, place) => ({ value: String(place), name: value }))}
              onChange={(next) => setChosen({ ...view, z: { ...view.z, [index]: Number(next) } })}
            />
          </Field>
        ))}
        <Button icon={ImageDown} isBusy={isBusy} onClick={() => void save()}>
          {texts.sweep.export}
        </Button>
      </div>
      <Cut axis={across} />
      <Cut axis={down} />
      <div ref={scroller} className={styles.scroller}>
        <table className={styles.table} aria-label={texts.sweep.name} {...handlers}>
          <thead>
            <tr>
              {down && <th scope="col">{down.name}</th>}
              {columns.map((value, column) => (
                // biome-ignore lint/suspicious/noArrayIndexKey: values are identified by position
                <th key={column} scope="col" title={value}>
                  <small>{across.name}</small> {breakable(value)}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map((value, row) => (
              // biome-ignore lint/suspicious/noArrayIndexKey: values are identified by position
              <tr key={row}>
                {down && (
                  <th scope="row" title={value}>
                    {breakable(value)}
                  </th>
                )}
                {columns.map((_value, column) => {
                  const id = shown[row]?.[column] ?? null;
                  return (
                    // biome-ignore lint/suspicious/noArrayIndexKey: values are identified by position
                    <td key={column}>
                      <div className={styles.cell} style={{ width, height }} role={id ? "list" : undefined}>
                        {id ? (
                          <Tile
                            id={id}
                            left={0}
                            top={0}
                            width={width}
                            height={height}
                            place={ids.indexOf(id)}
                            total={ids.length}
                            isSelected={selected.has(id)}
                            isCurrent
                            isPlaying={hovered === id}
                          />
                        ) : (
                          <span>{texts.sweep.missing}</span>
                        )}
                      </div>
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </div>
  );
}

function Cut({ axis }: { axis: Axis | undefined }) {
  if (!axis || axis.values.length <= MAX_SHOWN) return null;
  return <p className={styles.cut}>{texts.sweep.cut(MAX_SHOWN, axis.values.length, axis.name)}</p>;
}

/** The width of an element once it is mounted. */
function useWidth(of: RefObject<HTMLElement | null>, isThere: boolean): number {
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const element = of.current;
    if (!element || !isThere) return;
    const measure = () => setWidth(element.clientWidth);
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, [of, isThere]);
  return width;
}
