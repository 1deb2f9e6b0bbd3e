// Adding what the form stands for.

import { useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useRef, useState } from "react";
import { call, newKey } from "@/api/client";
import { type Missing, Problem, sentence } from "@/api/problem";
import { keys } from "@/api/queries";
import type { Batch, Job } from "@/api/types";
import { toast } from "@/kit";
import { create as texts } from "@/texts/create";
import { countOf, listsOf, MOST_JOBS } from "./combine";
import { unsent } from "./drafts";
import type { Form } from "./form";
import { deskBatch, errorsByField, isSingle, itemBodies } from "./submission";

export interface Adding {
  isBusy: boolean;
  /** Why it was not added, as a sentence that belongs to no field. */
  problem: string | null;
  /** What no worker has: it may be added anyway. */
  missing: readonly Missing[] | null;
  add: (anyway?: boolean) => Promise<void>;
}

/** Bring a field into view, its folded group included, and put the cursor there. */
export function focusField(key: string): void {
  const field = document.querySelector(`[data-field="${CSS.escape(key)}"]`);
  field?.closest("details")?.setAttribute("open", "");
  // before the control stand buttons about it
  const control =
    field?.querySelector<HTMLElement>("input:not([type=file]), textarea, select, [role=combobox]") ??
    field?.querySelector<HTMLElement>("button");
  field?.scrollIntoView({ block: "center" });
  control?.focus({ preventScroll: true });
}

export function useAdding(form: Form, { isDesk }: { isDesk: boolean }): Adding {
  const client = useQueryClient();
  const navigate = useNavigate();
  const [isBusy, setBusy] = useState(false);
  const [refused, setRefused] = useState<{
    draft: unknown;
    problem: string | null;
    missing: readonly Missing[] | null;
  } | null>(null);
  // pressed twice it is added once
  const going = useRef(false);
  const { choice, draft } = form;
  // of what was changed since, nothing is known
  const present = refused?.draft === draft ? refused : null;

  const send = async (anyway: boolean): Promise<void> => {
    const waits = anyway ? { wait_for_missing: true } : {};
    const idempotency_key = newKey();
    const target = choice.kind === "effect" ? { effect_id: choice.effectId } : { workflow_slug: choice.slug };
    if (isSingle(choice, draft)) {
      const [item] = itemBodies(choice, draft);
      const body = { ...target, ...item, priority: draft.priority, idempotency_key, ...waits };
      const { data } = await call<Job>("POST", "/api/ai-jobs", body);
      toastAdded(1, texts.plan.showJob, () => void navigate({ to: "/jobs/$id", params: { id: data.id } }));
      return;
    }
    const body = isDesk
      ? { ...deskBatch(choice, draft), label: draft.label.trim() || choice.name.slice(0, 200) }
      : {
          ...target,
          items: itemBodies(choice, draft),
          label: draft.label.trim() || choice.name.slice(0, 200),
          priority: draft.priority,
        };
    const path = isDesk ? "/api/desk/batches" : "/api/batches";
    const { data } = await call<Batch>("POST", path, { ...body, idempotency_key, ...waits });
    toastAdded(data.total, texts.plan.show, () => void navigate({ to: "/queue", search: { batch: data.id } }));
  };

  /** What was changed and run is its own job now. */
  const endChanging = () => {
    if (!draft.from) return;
    form.change({ from: null });
    if (location.pathname === "/create")
      void navigate({ to: "/create", search: { workflow: choice.slug }, replace: true });
  };

  const add = async (anyway = false): Promise<void> => {
    if (going.current || choice.waiting) return;
    const wrong = form.complain();
    if (wrong !== null) return focusField(wrong);
    if (unsent(draft).length) return;
    const count = countOf(listsOf(choice, draft));
    if (count > MOST_JOBS) {
      return setRefused({ draft, problem: texts.plan.tooMany(count, MOST_JOBS), missing: null });
    }
    going.current = true;
    setBusy(true);
    setRefused(null);
    try {
      await send(anyway);
      endChanging();
      for (const key of [keys.queue, keys.jobs, keys.batches, keys.counts]) {
        void client.invalidateQueries({ queryKey: key });
      }
    } catch (thrown) {
      const isMissing = thrown instanceof Problem && thrown.kind === "missing_on_workers";
      const found = thrown instanceof Problem ? errorsByField(choice, thrown.errors) : {};
      const keys_ = Object.keys(found);
      // what is shown at its field is not shown twice
      const isShown = keys_.length > 0 && keys_.every((key) => choice.properties.some((each) => each.key === key));
      setRefused({ draft, problem: isShown ? null : sentence(thrown), missing: isMissing ? thrown.missing : null });
      if (thrown instanceof Problem) {
        form.setProblems(found);
        const first = choice.properties.find((each) => each.key in found)?.key;
        // it is drawn first
        if (first) requestAnimationFrame(() => focusField(first));
      }
    } finally {
      going.current = false;
      setBusy(false);
    }
  };
  return { isBusy, problem: present?.problem ?? null, missing: present?.missing ?? null, add };
}

const toastAdded = (count: number, name: string, run: () => void): void =>
  toast({ text: texts.plan.added(count), tone: "good", action: { name, run } });
