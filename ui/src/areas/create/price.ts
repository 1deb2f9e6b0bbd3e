// The price of the jobs of a draft, before they are submitted.

import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { type BodyOf, post } from "@/api/client";
import { stringify } from "@/api/json";
import { type Draft, pendingUploads } from "./drafts";
import { type Form, validateDraft } from "./form";
import { type Choice, isSeed, primaryOf } from "./inputs";
import { jobRequests, payloadOf } from "./submission";
import { isCountedByServer } from "./sweep";

type PriceRequest = BodyOf<"/api/ai-jobs/price", "post">;
type BatchPriceRequest = BodyOf<"/api/batches/price", "post">;

export const PRICES = ["price"] as const;

export const jobPrice = (body: PriceRequest | null) => ({
  queryKey: [...PRICES, stringify(body)] as const,
  queryFn: async ({ signal }: { signal: AbortSignal }) =>
    (await post("/api/ai-jobs/price", { body: body ?? {}, signal })).data.tokens,
  enabled: body !== null,
  retry: false,
});

/** The price of each item of a batch. */
const itemPrices = (body: BatchPriceRequest | null) => ({
  queryKey: [...PRICES, "items", stringify(body)] as const,
  queryFn: async ({ signal }: { signal: AbortSignal }) =>
    (await post("/api/batches/price", { body: body ?? { items: [] }, signal })).data.items,
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

/** The request for the price of each file that the price depends on, or of any job, and the number of jobs of each. */
function batchRequestOf(choice: Choice, draft: Draft): { body: BatchPriceRequest; jobs: number[] } | null {
  if (choice.hasFixedPrice || isCountedByServer(choice, draft) || pendingUploads(draft).length) return null;
  const jobs = new Map<string | null, number>();
  for (const { input_file_id } of jobRequests(choice, draft)) {
    const file = choice.priceNeedsInput ? (input_file_id ?? null) : null;
    jobs.set(file, (jobs.get(file) ?? 0) + 1);
  }
  const [first] = jobs.keys();
  const request = first === undefined ? null : priceRequest(choice, draft, first);
  if (!request) return null;
  const { effect_id, input_payload } = request;
  const items = [...jobs.keys()].map((file) => ({ input_payload, ...(file !== null && { input_file_id: file }) }));
  return { body: { effect_id, items }, jobs: [...jobs.values()] };
}

/** The price of all jobs of an effect whose price depends on the inputs; null while it is unknown. */
export function usePriceOfJobs({ choice, draft }: Form, isDesk: boolean): number | null {
  const request = useMemo(() => (isDesk ? null : batchRequestOf(choice, draft)), [choice, draft, isDesk]);
  const { data: prices } = useQuery(itemPrices(request?.body ?? null));
  if (!request || !prices) return null;
  return prices.reduce((sum, price, place) => sum + price * (request.jobs[place] ?? 0), 0);
}
