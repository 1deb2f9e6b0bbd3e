// Output actions, shared by selection bar, menus and shortcuts.

import { useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { here, post } from "@/api/client";
import { desk } from "@/api/queries";
import { toast, toastProblem } from "@/kit";
import { gallery as texts } from "@/texts/gallery";
import type { Item } from "./item";
import { items } from "./item-store";
import { type Mark, useOutputMutations } from "./output-mutations";

/** Starts a browser download. */
export function save(url: string, name?: string): void {
  const link = document.createElement("a");
  link.href = here(url);
  link.download = name ?? "";
  link.click();
}

export function useActions() {
  const verbs = useOutputMutations();
  const navigate = useNavigate();
  const { data: isDesk } = useQuery({ ...desk, select: (found) => found !== null });

  /** Sets the mark, or removes it if all outputs have it. */
  const mark = async (ids: readonly string[], which: Mark) => {
    try {
      const known = ids.map((id) => items.get(id));
      await verbs.mark(ids, which, !known.every((each) => each?.[which]));
    } catch (thrown) {
      toastProblem(thrown);
    }
  };
  const zip = async (ids: readonly string[]) => {
    try {
      for (const url of await verbs.zip(ids)) save(url);
      toast({ text: texts.zipping(ids.length), tone: "good" });
    } catch (thrown) {
      toastProblem(thrown);
    }
  };
  const download = (item: Item) => save(item.url, item.filename);
  const openInCreate = (item: Item): void => void navigate({ to: "/create", search: { from: item.job_id } });
  // a server does not return the values of a job
  const recall = isDesk ? openInCreate : null;
  const takeAsInput = async (item: Item) => {
    try {
      const path = { job_id: item.job_id, number: item.number };
      const { data: file } = await post("/api/ai-jobs/{job_id}/outputs/{number}/as-input", { path });
      await navigate({ to: "/create", search: { input: file.id } });
    } catch (thrown) {
      toastProblem(thrown);
    }
  };
  const collect = async (ids: readonly string[], collection: { id: string; name: string }) => {
    try {
      await verbs.collect(ids, collection.id);
      const undo = { name: texts.verbs.undo, run: () => void verbs.release(ids, collection.id).catch(toastProblem) };
      toast({ text: texts.collections.added(ids.length, collection.name), tone: "good", action: undo });
    } catch (thrown) {
      toastProblem(thrown);
    }
  };
  const release = async (ids: readonly string[], collection: { id: string; name: string }) => {
    try {
      await verbs.release(ids, collection.id);
      const undo = { name: texts.verbs.undo, run: () => void verbs.collect(ids, collection.id).catch(toastProblem) };
      toast({ text: texts.collections.released(ids.length, collection.name), tone: "good", action: undo });
    } catch (thrown) {
      toastProblem(thrown);
    }
  };
  return { mark, zip, download, recall, takeAsInput, collect, release, isDesk: isDesk ?? false };
}
