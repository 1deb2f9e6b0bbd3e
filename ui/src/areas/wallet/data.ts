// What the wallet asks the server for.

import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { get } from "@/api/client";
import { keys } from "@/api/queries";
import type { components } from "@/api/schema";
import type { Page } from "@/api/types";

type Schemas = components["schemas"];
export type Transaction = Schemas["Transaction"];
export type Token = Schemas["Token"];
export type Delivery = Schemas["Delivery"];

const ALONG = { initialPageParam: "", getNextPageParam: (page: Page<unknown>) => page.next_cursor };
const LIMIT = 50;

export const transactions = infiniteQueryOptions({
  queryKey: [...keys.wallet, "transactions"] as const,
  queryFn: async ({ pageParam, signal }): Promise<Page<Transaction>> => {
    const query = { limit: LIMIT, ...(pageParam && { cursor: Number(pageParam) }) };
    const found = await get("/api/wallet", { query, signal });
    return { items: found.transactions, next_cursor: found.next_cursor };
  },
  ...ALONG,
});

export const tokens = infiniteQueryOptions({
  queryKey: ["tokens"] as const,
  queryFn: async ({ pageParam, signal }): Promise<Page<Token>> =>
    get("/api/tokens", { query: { limit: 200, ...(pageParam && { cursor: pageParam }) }, signal }),
  ...ALONG,
});

export const webhook = queryOptions({
  queryKey: ["webhook"] as const,
  queryFn: ({ signal }) => get("/api/webhook", { signal }),
});

const REFETCH_MS = 2000;

export const deliveries = (status: string | undefined) =>
  infiniteQueryOptions({
    queryKey: ["webhook", "deliveries", status] as const,
    queryFn: async ({ pageParam, signal }): Promise<Page<Delivery>> =>
      get("/api/deliveries", {
        query: { limit: LIMIT, ...(status && { status }), ...(pageParam && { cursor: pageParam }) } as never,
        signal,
      }),
    ...ALONG,
    staleTime: 0,
    // what is on its way arrives, or does not
    refetchInterval: ({ state }) =>
      state.data?.pages.some((each) => each.items.some((one) => one.status === "pending")) ? REFETCH_MS : false,
  });

export interface Line {
  transaction: Transaction;
  /** `JOB_CONSUME` where what was reserved has been used. */
  type: string;
}

/** As people read it: what was reserved and then used is one line, with what it cost. */
export function linesOf(found: readonly Transaction[]): Line[] {
  const used = new Set(found.filter((each) => each.type === "JOB_CONSUME").map((each) => each.job_id));
  return found
    .filter((each) => each.type !== "JOB_CONSUME")
    .map((each) => ({
      transaction: each,
      type: each.type === "JOB_RESERVE" && used.has(each.job_id) ? "JOB_CONSUME" : each.type,
    }));
}
