// Submits the form: one job, or a batch.

import { useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useRef, useState } from "react";
import { call, newKey } from "@/api/client";
import { type Missing, Problem, sentence } from "@/api/problem";
import { keys } from "@/api/queries";
import type { Batch, Job } from "@/api/types";
import { toast } from "@/kit";
import { create as texts } from "@/texts/create";
import { pendingUploads, recheckFiles } from "./drafts";
import type { Form } from "./form";
import { isFile } from "./inputs";
import { PRICES } from "./price";
import { estimate } from "./queries";
import { batchRequest, errorsByField, isSingleJob, jobRequests } from "./submission";
import { isCountedByServer, jobCount, MAX_JOBS, sweepOf } from "./sweep";

export interface SubmitState {
  isBusy: boolean;
  /** Why the server refused the form, unless the reason is shown at a field. */
  problem: string | null;
  /** Requirements that no worker has; the user may submit anyway. */
  missing: readonly Missing[] | null;
  /** The price of the jobs, if the server has told it for this draft. */
  price: number | null;
  /** Whether the next press accepts this price. */
  isConfirming: boolean;
  submit: (anyway?: boolean) => Promise<void>;
}

/** Scrolls to a field, opens its group and focuses it. */
export function focusField(key: string): void {
  const field = document.querySelector(`[data-field="${CSS.escape(key)}"]`);
  field?.closest("details")?.setAttribute("open", "");
  // buttons such as Reset come before the control
  const control =
    field?.querySelector<HTMLElement>("input:not([type=file]), textarea, select, [role=combobox]") ??
    field?.querySelector<HTMLElement>("button");
  field?.scrollIntoView({ block: "center" });
  control?.focus({ preventScroll: true });
}

interface SubmitOptions {
  isDesk: boolean;
  /** The price of the jobs, if it is known in advance. */
  price?: number | null;
}

export function useSubmit(form: Form, { isDesk, price: shown = null }: SubmitOptions): SubmitState {
  const client = useQueryClient();
  const navigate = useNavigate();
  const [isBusy, setBusy] = useState(false);
  const [refused, setRefused] = useState<{
    draft: unknown;
    problem: string | null;
    missing: readonly Missing[] | null;
    price: number | null;
    isPrice?: boolean;
  } | null>(null);
  // a double click submits once
  const isSubmitting = useRef(false);
  const { choice, draft } = form;
  // an answer is outdated once the draft changes
  const present = refused?.draft === draft ? refused : null;

  const send = async (anyway: boolean): Promise<void> => {
    const waits = anyway ? { wait_for_missing: true } : {};
    const idempotency_key = newKey();
    // on a server, users pay only a price that they have seen
    const expected = (count: number) =>
      isDesk || choice.kind !== "effect" ? {} : { expected_tokens: present?.price ?? shown ?? choice.tokens * count };
    const target = choice.kind === "effect" ? { effect_id: choice.effectId } : { workflow_slug: choice.slug };
    if (isSingleJob(choice, draft)) {
      const [item] = jobRequests(choice, draft);
      const body = { ...target, ...item, priority: draft.priority, idempotency_key, ...waits, ...expected(1) };
      const { data } = await call<Job>("POST", "/api/ai-jobs", body);
      toastAdded(1, texts.plan.showJob, () => void navigate({ to: "/jobs/$id", params: { id: data.id } }));
      return;
    }
    // let the server count the jobs of this draft, even if it was typed just now
    if (isDesk && isCountedByServer(choice, draft)) await client.fetchQuery(estimate(batchRequest(choice, draft)));
    const items = isDesk ? [] : jobRequests(choice, draft);
    const body = isDesk
      ? { ...batchRequest(choice, draft), label: draft.label.trim() || choice.name.slice(0, 200) }
      : {
          ...target,
          ...expected(items.length),
          items,
          label: draft.label.trim() || choice.name.slice(0, 200),
          priority: draft.priority,
        };
    const path = isDesk ? "/api/desk/batches" : "/api/batches";
    const { data } = await call<Batch>("POST", path, { ...body, idempotency_key, ...waits });
    toastAdded(data.total, texts.plan.show, () => void navigate({ to: "/queue", search: { batch: data.id } }));
  };

  /** The submitted job is a new one: stop showing differences from the recalled job. */
  const clearRecall = () => {
    if (!draft.from) return;
    form.change({ from: null });
    if (location.pathname === "/create")
      void navigate({ to: "/create", search: { workflow: choice.slug }, replace: true });
  };

  const submit = async (anyway = false): Promise<void> => {
    if (isSubmitting.current || choice.waiting) return;
    const wrong = form.validate();
    if (wrong !== null) return focusField(wrong);
    if (pendingUploads(draft).length) return;
    const count = jobCount(sweepOf(choice, draft));
    if (!isCountedByServer(choice, draft) && count > MAX_JOBS) {
      return setRefused({ draft, problem: texts.plan.tooMany(count, MAX_JOBS), missing: null, price: null });
    }
    isSubmitting.current = true;
    setBusy(true);
    setRefused(null);
    try {
      await send(anyway);
      clearRecall();
      for (const key of [keys.queue, keys.jobs, keys.batches, keys.counts]) {
        void client.invalidateQueries({ queryKey: key });
      }
    } catch (thrown) {
      const isMissing = thrown instanceof Problem && thrown.kind === "missing_on_workers";
      const found = thrown instanceof Problem ? errorsByField(choice, thrown.errors) : {};
      const fields = Object.keys(found);
      const isShown = fields.length > 0 && fields.every((key) => choice.properties.some((each) => each.key === key));
      const price = thrown instanceof Problem ? thrown.requiredTokens : null;
      const isPrice = price !== null && thrown instanceof Problem && thrown.kind === "price_changed";
      setRefused({
        draft,
        problem: isShown ? null : isPrice ? texts.plan.confirmPrice(count, price) : sentence(thrown),
        missing: isMissing ? thrown.missing : null,
        // also after a balance that was too low, or after missing requirements
        price: price ?? present?.price ?? null,
        isPrice,
      });
      if (isPrice) void client.invalidateQueries({ queryKey: PRICES });
      if (thrown instanceof Problem) {
        form.setProblems(found);
        for (const each of choice.properties)
          if (isFile(each) && each.key in found) recheckFiles(choice.slug, each.key);
        const first = choice.properties.find((each) => each.key in found)?.key;
        // after the problem is rendered
        if (first) requestAnimationFrame(() => focusField(first));
      }
    } finally {
      isSubmitting.current = false;
      setBusy(false);
    }
  };
  return {
    isBusy,
    problem: present?.problem ?? null,
    missing: present?.missing ?? null,
    price: present?.price ?? shown,
    isConfirming: present?.isPrice ?? false,
    submit,
  };
}

const toastAdded = (count: number, name: string, run: () => void): void =>
  toast({ text: texts.plan.added(count), tone: "good", action: { name, run } });
