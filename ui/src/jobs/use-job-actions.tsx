// Runs actions on jobs and batches. Every button, shortcut and menu item uses this hook.

import { useQueryClient } from "@tanstack/react-query";
import { type Answer, call } from "@/api/client";
import { aboutJob, keys } from "@/api/queries";
import type { Batch, BulkDone, Job } from "@/api/types";
import { toast, toastProblem } from "@/kit";
import { deleteWithUndo } from "@/kit/undoable-delete";
import { queue as texts } from "@/texts/queue";
import { type ActionTarget, activeOf, type BulkSelection, type JobAction, type Neighbor } from "./actions";
import { canceledJobs, selectionsOfIds } from "./bulk";
import { useConfirm } from "./use-confirm";

type TargetId = Pick<ActionTarget, "id" | "isBatch">;

interface Callbacks {
  /** An action created a job or batch. */
  onCreated?: (created: TargetId) => void;
  /** The user deleted a job or batch. */
  onDeleted?: () => void;
}

const AFFECTED_QUERIES: readonly string[] = ["queue", "slots", "counts", "job", "batch"];

export type JobActions = ReturnType<typeof useJobActions>;

/** The caller renders `dialog`. */
export function useJobActions({ onCreated, onDeleted }: Callbacks = {}) {
  const client = useQueryClient();
  const { confirm, dialog } = useConfirm();

  const refresh = () =>
    void client.invalidateQueries({ predicate: ({ queryKey: [key] }) => AFFECTED_QUERIES.includes(String(key)) });

  /** Resolves when the work is done and the queue shows it. */
  async function thenRefetchQueue<T>(work: Promise<T>): Promise<T> {
    const result = await work;
    await client.invalidateQueries({ queryKey: keys.queue });
    return result;
  }

  /** Sends a request and shows the message of the server. Returns null if it failed. */
  async function send<T>(request: () => Promise<Answer<T>>): Promise<T | null> {
    try {
      const { data, message } = await request();
      if (message && message !== "OK") toast({ text: message, tone: "good" });
      return data;
    } catch (thrown) {
      toastProblem(thrown);
      return null;
    } finally {
      refresh();
    }
  }

  /** Applies one action to all selected jobs. Returns how many it changed, or null if it failed. */
  async function bulk(action: string, selections: readonly BulkSelection[], options: Record<string, unknown> = {}) {
    let [changed, files, refused] = [0, 0, ""];
    const apply = (selection: BulkSelection) =>
      call<BulkDone>("POST", "/api/ai-jobs/bulk", { action, ...selection, ...options });
    try {
      // deletes need no order, and all start at once, because the page may be about to close
      const started = action === "delete" ? await Promise.all(selections.map(apply)) : [];
      for (const [index, selection] of selections.entries()) {
        const { data } = started[index] ?? (await apply(selection));
        changed += data.changed;
        files += data.files;
        refused ||= data.not_deleted[0] ?? data.refused[0]?.detail ?? "";
      }
      const more = [texts.deletedFiles(files), refused].filter(Boolean).join(" ");
      toast({
        text: texts.did(changed, texts.done[action] ?? "", more),
        tone: changed ? "good" : "info",
        topic: "bulk",
      });
      return changed;
    } catch (thrown) {
      toastProblem(thrown);
      return null;
    } finally {
      refresh();
    }
  }

  async function remove({ id, isBatch }: TargetId): Promise<void> {
    const { ask } = texts;
    const about = isBatch ? null : await client.fetchQuery(aboutJob(id)).catch(() => null);
    const confirmed = await confirm({
      title: isBatch ? ask.deleteBatchTitle : ask.deleteTitle,
      text: isBatch ? ask.deleteBatchText : ask.deleteText,
      files: about?.deleted_with_it ?? [],
      yes: ask.confirmDelete,
      ...((isBatch || about?.deleted_with_it.length) && { option: ask.keepFiles }),
    });
    if (!confirmed) return;
    const keepFiles = confirmed.isOptionOn;
    deleteWithUndo([id], isBatch ? ask.batchPending : ask.jobPending, () =>
      thenRefetchQueue(
        isBatch
          ? bulk("delete", [{ filter: { batch_id: id } }], { keep_files: keepFiles })
          : send(() => call("DELETE", `/api/ai-jobs/${id}${keepFiles ? "?keep_files=true" : ""}`)),
      ),
    );
    onDeleted?.();
  }

  /** Retries by id, which keeps the order of the items; a filter starts with the newest. */
  async function retryCanceled(batchId: string): Promise<void> {
    try {
      await bulk("retry", selectionsOfIds(await canceledJobs(batchId)));
    } catch (thrown) {
      toastProblem(thrown);
    }
  }

  async function cancel({ id, isBatch, counts }: ActionTarget): Promise<void> {
    const active = activeOf(counts);
    // a single job is canceled without confirmation, because it can be retried
    if (isBatch && active > 1) {
      const { ask } = texts;
      if (!(await confirm({ title: ask.cancelTitle(active), text: ask.cancelText, yes: ask.confirmCancel }))) return;
    }
    await send(() => call("POST", `${pathOf({ id, isBatch })}/cancel`));
  }

  async function run(action: JobAction, target: ActionTarget): Promise<void> {
    const { id, isBatch } = target;
    const post = <T,>(route: string, body?: unknown) => send(() => call<T>("POST", `${pathOf(target)}/${route}`, body));
    const create = async (route: string, body: unknown) => {
      const created = await post<Job | Batch>(route, body);
      if (created && created.id !== id) onCreated?.({ id: created.id, isBatch });
    };
    const retry = async (body: object) => {
      if (isBatch) await post("retry-failed", body);
      else await create("retry", body);
    };
    const runners: Record<JobAction, () => Promise<unknown>> = {
      pause: () => post("pause", { mode: "after" }),
      pauseNow: () => post("pause", { mode: "now" }),
      resume: () => post("resume"),
      next: () => post("move", { to: "top" }),
      up: () => post("move", { to: "up" }),
      down: () => post("move", { to: "down" }),
      retry: () => retry({}),
      retrySeeds: () => retry({ new_seeds: true }),
      retryCanceled: () => retryCanceled(id),
      again: () => create("again", { new_seeds: false }),
      againSeeds: () => create("again", { new_seeds: true }),
      cancel: () => cancel(target),
      delete: () => remove(target),
    };
    await runners[action]();
  }

  const setPriority = ({ id, isBatch }: TargetId, priority: number) =>
    bulk("priority", [isBatch ? { filter: { batch_id: id } } : { ids: [id] }], { priority });

  /** Moves a waiting entry before or after another one. */
  const move = (target: TargetId, { other, isAfter }: Neighbor) =>
    send(() => call("POST", `${pathOf(target)}/move`, { [isAfter ? "after" : "before"]: other }));

  return { run, bulk, thenRefetchQueue, setPriority, move, confirm, dialog, refresh };
}

const pathOf = ({ id, isBatch }: TargetId): string => `/api/${isBatch ? "batches" : "ai-jobs"}/${id}`;
