import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { post } from "@/api/client";
import { stringify } from "@/api/json";
import type { Form } from "@/areas/create/form";
import { payloadOf } from "@/areas/create/submission";
import type { StudioEffect } from "./queries";
import { asSingleJob } from "./use-start-effect";

/** The current price of a job; null while it is unknown, such as before the upload of the input that the price depends on. */
export function usePrice(effect: StudioEffect, form: Form, fileId: string | null): number | null {
  const isFixed = effect.max_credits_cost == null;
  const body = {
    effect_id: effect.id,
    input_payload: isFixed ? {} : payloadOf(form.choice, asSingleJob(form.draft)),
    ...(fileId && { input_file_id: fileId }),
  };
  const { data, isPlaceholderData, isError } = useQuery({
    queryKey: ["price", stringify(body)],
    queryFn: async ({ signal }) => (await post("/api/ai-jobs/price", { body, signal })).data.tokens,
    enabled: !isFixed,
    retry: false,
    placeholderData: keepPreviousData,
  });
  if (isFixed) return effect.credits_cost;
  return isError || isPlaceholderData ? null : (data ?? null);
}
