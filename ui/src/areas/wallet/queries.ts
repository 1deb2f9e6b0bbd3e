// Wallet queries.

import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { get } from "@/api/client";
import { keys } from "@/api/queries";
import type { components } from "@/api/schema";
import type { Page } from "@/api/types";

type Schemas = components["schemas"];
export type Transaction = Schemas["Transaction"];
export type Token = Schemas["Token"];
export type StoredUpload = Schemas["StoredUpload"];
export type Delivery = Schemas["Delivery"];
export type DeliveryStatus = Schemas["DeliveryStatus"];

const CURSOR_PAGES = { initialPageParam: "", getNextPageParam: (page: Page<unknown>) => page.next_cursor };
const LIMIT = 50;

export const transactions = infiniteQueryOptions({
  queryKey: [...keys.wallet, "transactions"] as const,
  queryFn: async ({ pageParam, signal }): Promise<Page<Transaction>> => {
    const query = { limit: LIMIT, ...(pageParam && { cursor: Number(pageParam) }) };
    const found = await get("/api/wallet", { query, signal });
    return { items: found.transactions, next_cursor: found.next_cursor };
  },
  ...CURSOR_PAGES,
});

export const account = queryOptions({
  queryKey: ["account"] as const,
  queryFn: ({ signal }) => get("/api/account", { signal }),
});

export const tokens = infiniteQueryOptions({
  queryKey: ["tokens"] as const,
  queryFn: async ({ pageParam, signal }): Promise<Page<Token>> =>
    get("/api/tokens", { query: { limit: 200, ...(pageParam && { cursor: pageParam }) }, signal }),
  ...CURSOR_PAGES,
});

export const uploads = infiniteQueryOptions({
  queryKey: ["uploads"] as const,
  queryFn: ({ pageParam, signal }) =>
    get("/api/videos/uploads", { query: { limit: LIMIT, ...(pageParam && { cursor: pageParam }) }, signal }),
  initialPageParam: "",
  getNextPageParam: (page: Schemas["UploadPage"]) => page.next_cursor,
});

export const webhook = queryOptions({
  queryKey: ["webhook"] as const,
  queryFn: ({ signal }) => get("/api/webhook", { signal }),
});

const REFETCH_MS = 2000;

export const deliveries = (status: DeliveryStatus | undefined) =>
  infiniteQueryOptions({
    queryKey: ["webhook", "deliveries", status] as const,
    queryFn: async ({ pageParam, signal }): Promise<Page<Delivery>> =>
      get("/api/deliveries", {
        query: { limit: LIMIT, ...(status && { status }), ...(pageParam && { cursor: pageParam }) },
        signal,
      }),
    ...CURSOR_PAGES,
    staleTime: 0,
    // no event says when a pending delivery is done
    refetchInterval: ({ state }) =>
      state.data?.pages.some((each) => each.items.some((one) => one.status === "pending")) ? REFETCH_MS : false,
  });

export interface LedgerLine {
  transaction: Transaction;
  /** `JOB_CONSUME` if the reserved tokens were used. */
  type: string;
}

/** Merges a reservation and its use into one line with the cost. Unused tokens were released. */
export function ledgerLines(found: readonly Transaction[]): LedgerLine[] {
  const used = found.filter((each) => each.type === "JOB_CONSUME");
  const released = new Map(used.map((each) => [each.job_id, each.amount]));
  return found
    .filter((each) => each.type !== "JOB_CONSUME")
    .map((each) => {
      const rest = each.type === "JOB_RESERVE" ? released.get(each.job_id) : undefined;
      if (rest === undefined) return { transaction: each, type: each.type };
      return { transaction: { ...each, amount: each.amount + rest }, type: "JOB_CONSUME" };
    });
}
