// Doing things with jobs and batches: every button, key and menu comes here.

import { useQueryClient } from "@tanstack/react-query";
import { type ReactNode, useState } from "react";
import { type Answer, call, get } from "@/api/client";
import { aboutJob, jobs as jobsQuery, keys } from "@/api/queries";
import type { Batch, BulkDone, Job } from "@/api/types";
import { leave } from "@/app/leaving";
import {
  activeOf,
  type Beside,
  type BulkAmong,
  canPrioritise,
  PRIORITIES,
  type Subject,
  type VerbName,
} from "@/areas/queue/rules";
import { Button, Checkbox, Dialog, type MenuItem, toast, toastProblem } from "@/kit";
import { queue as texts } from "@/texts/queue";
import styles from "./doing.module.css";

interface Question {
  title: string;
  text: string;
  yes: string;
  no?: string;
  isDanger?: boolean;
  /** Files that go. */
  files?: readonly string[];
  /** One more thing to decide. */
  option?: string;
}

export interface Confirmed {
  isOn: boolean;
}

const MOST_NAMED = 5;

/** Ask before something is done; null where the answer is no. */
export function useAsk(): { ask: (question: Question) => Promise<Confirmed | null>; dialog: ReactNode } {
  const [open, setOpen] = useState<(Question & { answer: (confirmed: Confirmed | null) => void }) | null>(null);
  const [isOn, setOn] = useState(false);
  const ask = (question: Question) =>
    new Promise<Confirmed | null>((answer) => {
      setOn(false);
      setOpen({ ...question, answer });
    });
  const close = (confirmed: Confirmed | null) => {
    open?.answer(confirmed);
    setOpen(null);
  };
  const rest = (open?.files?.length ?? 0) - MOST_NAMED;
  const dialog = (
    <Dialog
      isOpen={open !== null}
      onClose={() => close(null)}
      title={open?.title ?? ""}
      about={open?.text}
      actions={
        <>
          <Button onClick={() => close(null)}>{open?.no ?? texts.ask.keep}</Button>
          <Button look={open?.isDanger === false ? "primary" : "danger"} autoFocus onClick={() => close({ isOn })}>
            {open?.yes}
          </Button>
        </>
      }
    >
      {open?.files && open.files.length > 0 && (
        <div className={styles.files}>
          {texts.ask.alsoDeleted}
          <ul>
            {open.files.slice(0, MOST_NAMED).map((each) => (
              <li key={each}>{each}</li>
            ))}
            {rest > 0 && <li>{texts.ask.andMore(rest)}</li>}
          </ul>
        </div>
      )}
      {open?.option && (
        // biome-ignore lint/a11y/noLabelWithoutControl: the checkbox is in it
        <label className={styles.option}>
          <Checkbox name={open.option} isOn={isOn} onChange={setOn} />
          {open.option}
        </label>
      )}
    </Dialog>
  );
  return { ask, dialog };
}

const MOST_IDS = 1000;

/** How many jobs each means now, and the same with the moment of that: what comes to fit later is then left alone. */
export async function counted(among: readonly BulkAmong[], signal?: AbortSignal) {
  const found = await Promise.all(
    among.map((each) =>
      call<BulkDone>("POST", "/api/ai-jobs/bulk", { action: "cancel", ...each, dry_run: true }, signal),
    ),
  );
  return found.map(({ data }, n) => ({
    matched: data.matched,
    among: { ...among[n], ...(data.as_of && { as_of: data.as_of }) } as BulkAmong,
  }));
}

/** `dialog` is to be shown somewhere. `onMade` is told of the job or batch that a verb has made. */
export function useDoing(onMade?: (made: { id: string; isBatch: boolean }) => void, onGone?: (id: string) => void) {
  const client = useQueryClient();
  const { ask, dialog } = useAsk();

  const refresh = () =>
    void client.invalidateQueries({
      predicate: ({ queryKey: [word] }) => ["queue", "lanes", "counts", "job", "batch"].includes(String(word)),
    });

  /** When it is done, and the queue shows it. */
  async function refetchAfter<T>(done: Promise<T>): Promise<T> {
    const found = await done;
    await client.invalidateQueries({ queryKey: keys.queue });
    return found;
  }

  /** Do it, say what the server says of it, and fetch anew. */
  async function run<T>(work: () => Promise<Answer<T>>): Promise<T | null> {
    try {
      const { data, message } = await work();
      if (message && message !== "OK") toast({ text: message, tone: "good" });
      return data;
    } catch (thrown) {
      toastProblem(thrown);
      return null;
    } finally {
      refresh();
    }
  }

  /** One verb for all of them; how many jobs it changed, or null where nothing was done. */
  async function bulk(action: string, among: readonly BulkAmong[], more: Record<string, unknown> = {}) {
    let [changed, files, refused] = [0, 0, ""];
    try {
      for (const each of among) {
        const { data } = await call<BulkDone>("POST", "/api/ai-jobs/bulk", { action, ...each, ...more });
        changed += data.changed;
        files += data.files;
        refused ||= data.left?.[0] ?? data.refused[0]?.detail ?? "";
      }
      toast({
        text: texts.did(
          changed,
          texts.done[action] ?? "",
          [texts.deletedFiles(files), refused].filter(Boolean).join(" "),
        ),
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

  async function remove({ id, isBatch }: Subject) {
    const { ask: words } = texts;
    const about = isBatch ? null : await client.fetchQuery(aboutJob(id)).catch(() => null);
    const confirmed = await ask({
      title: isBatch ? words.deleteBatchTitle : words.deleteTitle,
      text: isBatch ? words.deleteBatchText : words.deleteText,
      files: about?.deleted_with_it ?? [],
      yes: words.deleteYes,
      ...((isBatch || about?.deleted_with_it.length) && { option: words.keepFiles }),
    });
    if (!confirmed) return;
    leave([id], isBatch ? words.batchGoes : words.jobGoes, () =>
      refetchAfter(
        isBatch
          ? bulk("delete", [{ filter: { batch_id: id } }], { keep_files: confirmed.isOn })
          : run(() => call("DELETE", `/api/ai-jobs/${id}${confirmed.isOn ? "?keep_files=true" : ""}`)),
      ),
    );
    onGone?.(id);
  }

  /** By ids, which keep the order of the items; a filter begins with the newest. */
  async function retryCanceled(id: string) {
    const ids: string[] = [];
    const asked = jobsQuery({ batch_id: id, status: "canceled" }, 200);
    try {
      for (let cursor: string | null | undefined; ; ) {
        const page = await get("/api/ai-jobs", {
          query: { batch_id: id, status: "canceled", sort: "oldest", limit: 200, ...(cursor && { cursor }) },
        });
        ids.push(...page.items.map((each) => each.id));
        cursor = page.next_cursor;
        if (!cursor) break;
      }
    } catch (thrown) {
      toastProblem(thrown);
      return;
    }
    void client.removeQueries({ queryKey: asked.queryKey });
    const among: BulkAmong[] = [];
    for (let from = 0; from < ids.length; from += MOST_IDS) among.push({ ids: ids.slice(from, from + MOST_IDS) });
    await bulk("retry", among);
  }

  async function doVerb(verb: VerbName, subject: Subject): Promise<void> {
    const { id, isBatch, counts } = subject;
    const to = <T,>(word: string, body?: unknown) =>
      run(() => call<T>("POST", `/api/${isBatch ? "batches" : "ai-jobs"}/${id}/${word}`, body));
    const making = async (word: string, body?: unknown) => {
      const made = await to<Job | Batch>(word, body);
      if (made && made.id !== id) onMade?.({ id: made.id, isBatch });
    };
    switch (verb) {
      case "pause":
        return void (await to("pause", { mode: "after" }));
      case "pauseNow":
        return void (await to("pause", { mode: "now" }));
      case "resume":
        return void (await to("resume"));
      case "next":
        return void (await to("move", { to: "top" }));
      case "up":
      case "down":
        return void (await to("move", { to: verb }));
      case "retry":
        return isBatch ? void (await to("retry-failed", {})) : making("retry", {});
      case "retrySeeds":
        return isBatch ? void (await to("retry-failed", { new_seeds: true })) : making("retry", { new_seeds: true });
      case "retryCanceled":
        return retryCanceled(id);
      case "again":
        return making("again", { new_seeds: false });
      case "againSeeds":
        return making("again", { new_seeds: true });
      case "cancel": {
        const active = activeOf(counts);
        const { ask: words } = texts;
        // one job is canceled at once: retry brings it back
        if (isBatch && active > 1) {
          const confirmed = await ask({
            title: words.cancelTitle(active),
            text: words.cancelText,
            yes: words.cancelYes,
          });
          if (!confirmed) return;
        }
        return void (await to("cancel"));
      }
      case "delete":
        return remove(subject);
    }
  }

  const setPriority = ({ id, isBatch }: Pick<Subject, "id" | "isBatch">, priority: number) =>
    bulk("priority", [isBatch ? { filter: { batch_id: id } } : { ids: [id] }], { priority });

  /** Put it before or after another that waits. */
  const moveBeside = ({ id, isBatch }: Pick<Subject, "id" | "isBatch">, { other, isAfter }: Beside) =>
    run(() =>
      call("POST", `/api/${isBatch ? "batches" : "ai-jobs"}/${id}/move`, { [isAfter ? "after" : "before"]: other }),
    );

  return { doVerb, bulk, refetchAfter, setPriority, moveBeside, ask, dialog, refresh };
}

/** What a verb is called for this one. */
export function nameOfVerb(verb: VerbName, { isBatch, counts }: Subject): string {
  const { verbs } = texts;
  if (!isBatch) return verb === "retryCanceled" ? verbs.retry : verbs[verb];
  switch (verb) {
    case "pause":
      return counts.processing ? verbs.pauseBatch : verbs.pause;
    case "retry":
      return verbs.retryFailed(counts.failed ?? 0);
    case "retryCanceled":
      return verbs.retryCanceled(counts.canceled ?? 0);
    case "again":
      return verbs.againBatch;
    case "againSeeds":
      return verbs.againSeedsBatch;
    default:
      return verbs[verb];
  }
}

/** The three priorities in a menu, where it makes sense. */
export const priorityItems = (subject: Subject, set: (priority: number) => void): MenuItem[] =>
  canPrioritise(subject)
    ? (["high", "normal", "low"] as const).map((each) => ({
        name: `${texts.priority}: ${texts.priorities[each]}`,
        isOn: subject.priority === PRIORITIES[each],
        run: () => set(PRIORITIES[each]),
      }))
    : [];
