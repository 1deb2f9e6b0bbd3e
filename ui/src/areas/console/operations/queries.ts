// Queries of the webhooks, reconcile and settings pages.

import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { get, post } from "@/api/client";
import type { components } from "@/api/schema";
import { isCalendarDay } from "@/lib/search-params";

type Schemas = components["schemas"];
export type Delivery = Schemas["TenantDelivery"];
export type DeliveryState = Schemas["DeliveryState"];
export type Stuck = Schemas["StuckStep"];
export type Finding = Schemas["Inconsistency"];
export type Run = Schemas["ReconcileRun"];
export type Setting = Schemas["EffectiveSetting"];
export type AlertRule = Schemas["AlertRuleView"];
export type AuditEntry = Schemas["AuditLogEntry"];

export const keys = {
  deliveries: ["console", "webhooks", "deliveries"] as const,
  stuck: ["console", "webhooks", "stuck"] as const,
  findings: ["console", "reconcile"] as const,
  settings: ["console", "settings"] as const,
  audit: ["console", "audit"] as const,
  alerts: ["console", "alerts"] as const,
};

export const DELIVERY_STATES: readonly DeliveryState[] = ["dead", "failing", "pending", "delivered"];

const OPEN: readonly string[] = ["pending", "failing"];
const PENDING_MS = 5000;

export const deliveries = (status: DeliveryState | null) =>
  infiniteQueryOptions({
    queryKey: [...keys.deliveries, status] as const,
    queryFn: ({ pageParam, signal }) =>
      get("/api/admin/webhooks/deliveries", {
        query: { limit: 50, ...(status && { status }), ...(pageParam && { cursor: pageParam }) },
        signal,
      }),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
    // events may get lost
    refetchInterval: ({ state }) =>
      state.data?.pages.some((page) => page.items.some((each) => OPEN.includes(each.status))) ? PENDING_MS : false,
  });

interface AuditQuery {
  search?: string;
  from?: string;
  to?: string;
}

/** Maps search parameters to the request, without nonexistent days. */
export const parseAuditQuery = ({ q, from, to }: { q?: string; from?: string; to?: string }): AuditQuery => ({
  ...(q && { search: q }),
  ...(from && isCalendarDay(from) && { from }),
  ...(to && isCalendarDay(to) && { to }),
});

export const auditLog = (asked: AuditQuery) =>
  infiniteQueryOptions({
    queryKey: [...keys.audit, asked] as const,
    queryFn: ({ pageParam, signal }) =>
      get("/api/admin/audit", { query: { limit: 50, ...asked, ...(pageParam && { cursor: pageParam }) }, signal }),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
    // opened to see the latest
    staleTime: 0,
  });

export const alertRules = queryOptions({
  queryKey: keys.alerts,
  queryFn: ({ signal }) => get("/api/admin/alerts", { signal }),
});

export const testAlert = (name: string) => post("/api/admin/alerts/{name}/test", { path: { name } });

export const redeliver = (id: string) =>
  post("/api/admin/webhooks/deliveries/{delivery_id}/redeliver", { path: { delivery_id: id } });

export const stuck = queryOptions({
  queryKey: keys.stuck,
  queryFn: async ({ signal }) => (await get("/api/admin/outbox/dead", { signal })).items,
  // no event reports that an entry became stuck
  refetchInterval: 6 * PENDING_MS,
});

const REFETCH_MS = 1500;

export const findings = queryOptions({
  queryKey: keys.findings,
  queryFn: ({ signal }) => get("/api/admin/reconcile/findings", { signal }),
  refetchInterval: ({ state }) => (state.data?.running ? REFETCH_MS : false),
});

export const reconcileNow = () => post("/api/admin/reconcile");

export const settings = queryOptions({
  queryKey: keys.settings,
  queryFn: ({ signal }) => get("/api/admin/settings", { signal }),
});
