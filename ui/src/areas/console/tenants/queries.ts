// Tenants, their users and their tokens.

import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { type BodyOf, get, newKey, patch, post, type Version } from "@/api/client";
import type { components } from "@/api/schema";

type Schemas = components["schemas"];
export type Tenant = Schemas["Tenant"];
export type ResetLink = Schemas["ResetLink"];

export type User = Schemas["TenantUser"];
export type TenantDetails = Schemas["TenantDetails"];
export type Transaction = Schemas["TenantTransaction"];

export const keys = {
  tenants: ["console", "tenants"] as const,
  tenant: (id: string) => ["console", "tenant", id] as const,
};

export const tenants = (search: string) =>
  infiniteQueryOptions({
    queryKey: [...keys.tenants, search] as const,
    queryFn: ({ pageParam, signal }) =>
      get("/api/admin/tenants", {
        query: { limit: 50, ...(search && { search }), ...(pageParam && { cursor: pageParam }) },
        signal,
      }),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
  });

export const tenant = (id: string) =>
  queryOptions({
    queryKey: keys.tenant(id),
    queryFn: ({ signal }) => get("/api/admin/tenants/{tenant_id}", { path: { tenant_id: id }, signal }),
  });

export const transactions = (id: string) =>
  infiniteQueryOptions({
    queryKey: [...keys.tenant(id), "transactions"] as const,
    queryFn: ({ pageParam, signal }) =>
      get("/api/admin/tenants/{tenant_id}/transactions", {
        path: { tenant_id: id },
        query: { limit: 50, ...(pageParam && { cursor: Number(pageParam) }) },
        signal,
      }),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
  });

const LONGEST_NAME = 150;

/** Idempotency reference of a credit. It is unique per dialog, names the administrator, and has no colon, unlike the
 * references of payments. */
export const newReference = (email: string, now = new Date(), random = newKey()): string => {
  const at = now.toISOString().slice(0, 19).replace("T", " ");
  return `console ${at} ${random.slice(-6)} ${email.slice(0, LONGEST_NAME)}`.trim().replaceAll(":", ".");
};

export const changeTenant = (id: string, body: BodyOf<"/api/admin/tenants/{tenant_id}", "patch">, version?: Version) =>
  patch("/api/admin/tenants/{tenant_id}", { path: { tenant_id: id }, body, version });
export const changeUser = (id: string, body: BodyOf<"/api/admin/users/{user_id}", "patch">, version?: Version) =>
  patch("/api/admin/users/{user_id}", { path: { user_id: id }, body, version });
export const resetLink = async (id: string): Promise<ResetLink> =>
  (await post("/api/admin/users/{user_id}/reset-link", { path: { user_id: id } })).data;
