// The price of the jobs of a draft, before they are submitted.

import { useQueries } from "@tanstack/react-query";
import { useMemo } from "react";
import { type BodyOf, post } from "@/api/client";
import { stringify } from "@/api/json";
import { type Draft, pendingUploads } from "./drafts";
import { type Form, validateDraft } from "./form";
import { type Choice, isSeed, primaryOf } from "./inputs";
import { jobRequests, payloadOf } from "./submission";
import { isCountedByServer } from "./sweep";

type PriceRequest = BodyOf<"/api/ai-jobs/price", "post">;

export const PRICES = ["price"] as const;
// the server measures each file
const MAX_FILES = 20;

export const jobPrice = (body: PriceRequest | null) => ({
  queryKey: [...PRICES, stringify(body)] as const,
  queryFn: async ({ signal }: { signal: AbortSignal }) =>
    (await post("/api/ai-jobs/price", { body: body ?? {}, signal })).data.tokens,
  enabled: body !== null,
  retry: false,
});

/** Only numbers and the primary input change a price. Null while a number is invalid or a required file is missing. */
export function priceRequest(choice: Choice, draft: Draft, fileId: string | null): PriceRequest | null {
  if (choice.effectId === null || choice.hasFixedPrice) return null;
  if (choice.priceNeedsInput && fileId === null && primaryOf(choice)?.required) return null;
  const numbers = choice.properties.filter((each) => each.type === "number" && !isSeed(each));
  const problems = validateDraft(choice, draft);
  if (numbers.some((each) => each.key in problems)) return null;
  const values = payloadOf(choice, draft);
  const payload = numbers.flatMap(({ key }) => (key in values ? [[key, values[key]]] : []));
  return {
    effect_id: choice.effectId,
    input_payload: Object.fromEntries(payload),
    ...(choice.priceNeedsInput && fileId && { input_file_id: fileId }),
  };
}

/** The requests whose prices add up to the price of all jobs, and how often each counts. */
function priceRequests(choice: Choice, draft: Draft): { body: PriceRequest; jobs: number }[] | null {
  if (choice.hasFixedPrice || isCountedByServer(choice, draft) || pendingUploads(draft).length) return null;
  const jobs = new Map<string | null, number>();
  for (const { input_file_id } of jobRequests(choice, draft)) {
    const file = choice.priceNeedsInput ? (input_file_id ?? null) : null;
    jobs.set(file, (jobs.get(file) ?? 0) + 1);
  }
  if (jobs.size > MAX_FILES) return null;
  const found = [...jobs].flatMap(([file, count]) => {
    const body = priceRequest(choice, draft, file);
    return body ? [{ body, jobs: count }] : [];
  });
  return found.length === jobs.size ? found : null;
}

/** The price of all jobs of an effect whose price depends on the inputs; null while it is unknown. */
export function usePriceOfJobs({ choice, draft }: Form, isDesk: boolean): number | null {
  const requests = useMemo(() => (isDesk ? null : priceRequests(choice, draft)), [choice, draft, isDesk]);
  const prices = useQueries({ queries: (requests ?? []).map(({ body }) => jobPrice(body)) });
  if (!requests) return null;
  return requests.reduce<number | null>((sum, { jobs }, place) => {
    const price = prices[place]?.data;
    return sum === null || price === undefined ? null : sum + jobs * price;
  }, 0);
}
