import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Bookmark, BookmarkPlus, ListFilter, Trash2 } from "lucide-react";
import { type FormEvent, useState } from "react";
import { put, remove } from "@/api/client";
import { keys, useFilterWorkflows, views as viewsQuery } from "@/api/queries";
import type { SavedView } from "@/api/types";
import { Button, Dialog, Field, FilterChip, IconButton, Menu, TextField, toastProblem } from "@/kit";
import { queue as texts } from "@/texts/queue";
import { isSameView } from "./rules";

interface SavedViewsProps {
  /** The current filters: status, workflow, q, sort. */
  search: Record<string, string>;
  onChange: (search: Record<string, string>) => void;
}

const SORTS = ["queue", "newest", "oldest"] as const;

/** Saved views, and a menu to sort, filter by workflow and save a view. */
export function SavedViews({ search, onChange }: SavedViewsProps) {
  const client = useQueryClient();
  const { data: views = [] } = useQuery(viewsQuery);
  const workflows = useFilterWorkflows();
  const [isNaming, setNaming] = useState(false);
  const [name, setName] = useState("");
  const hasAny = Object.values(search).some(Boolean);
  const current = views.find((each) => isSameView(each, search));

  async function change(work: () => Promise<unknown>): Promise<boolean> {
    try {
      await work();
      await client.invalidateQueries({ queryKey: keys.views });
      return true;
    } catch (thrown) {
      toastProblem(thrown);
      return false;
    }
  }
  async function save(event: FormEvent) {
    event.preventDefault();
    if (!name.trim()) return;
    const body = { area: "queue" as const, name: name.trim(), search };
    if (!(await change(() => put("/api/views", { body })))) return;
    setNaming(false);
    setName("");
  }
  const removeView = ({ id }: SavedView) => change(() => remove("/api/views/{view_id}", { path: { view_id: id } }));

  return (
    <>
      {views.map((each) => (
        <FilterChip key={each.id} icon={Bookmark} isOn={each === current} onClick={() => onChange(each.search)}>
          {each.name}
        </FilterChip>
      ))}
      <Menu
        align="start"
        items={[
          SORTS.map((each) => ({
            name: texts.sorts[each] ?? each,
            isOn: (search.sort || "queue") === each,
            run: () => onChange({ ...search, sort: each === "queue" ? "" : each }),
          })),
          workflows.length
            ? [
                {
                  name: texts.anyWorkflow,
                  isOn: !search.workflow,
                  run: () => onChange({ ...search, workflow: "" }),
                },
                ...workflows.map((each) => ({
                  name: each.name,
                  isOn: search.workflow === each.slug,
                  run: () => onChange({ ...search, workflow: each.slug }),
                })),
              ]
            : [],
          [
            ...(hasAny && !current ? [{ name: texts.saveView, icon: BookmarkPlus, run: () => setNaming(true) }] : []),
            ...(current
              ? [
                  {
                    name: texts.forgetView(current.name),
                    icon: Trash2,
                    run: () => void removeView(current),
                  },
                ]
              : []),
          ],
        ]}
      >
        <IconButton
          icon={ListFilter}
          name={texts.filters}
          isPressed={Boolean(search.workflow || search.sort)}
          size="small"
        />
      </Menu>
      <Dialog
        isOpen={isNaming}
        onClose={() => setNaming(false)}
        title={texts.saveViewTitle}
        about={texts.saveViewHint}
        actions={
          <Button look="primary" type="submit" form="save-view" disabled={!name.trim()}>
            {texts.save}
          </Button>
        }
      >
        <form id="save-view" onSubmit={(event) => void save(event)}>
          <Field name={texts.saveViewName}>
            <TextField value={name} autoFocus maxLength={40} onChange={(event) => setName(event.target.value)} />
          </Field>
        </form>
      </Dialog>
    </>
  );
}
