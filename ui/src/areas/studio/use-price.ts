import { keepPreviousData, useQuery } from "@tanstack/react-query";
import type { Form } from "@/areas/create/form";
import { jobPrice, priceRequest } from "@/areas/create/price";
import type { StudioEffect } from "./queries";
import { asSingleJob } from "./use-start-effect";

/** The current price of a job; null while it is unknown, such as before the upload of the input that the price depends on. */
export function usePrice(effect: StudioEffect, form: Form, fileId: string | null): number | null {
  const body = priceRequest(form.choice, asSingleJob(form.draft), fileId);
  const { data, isPlaceholderData, isError } = useQuery({ ...jobPrice(body), placeholderData: keepPreviousData });
  if (form.choice.hasFixedPrice) return effect.credits_cost;
  return body === null || isError || isPlaceholderData ? null : (data ?? null);
}
