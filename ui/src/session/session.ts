import { useSuspenseQuery } from "@tanstack/react-query";
import { desk, me } from "@/api/queries";
import type { Desk, Me } from "@/api/types";

/** A desk, a user of a server, or an administrator of a server. */
export type Role = "desk" | "user" | "admin";

export interface Session {
  me: Me;
  /** null on a server */
  desk: Desk | null;
  role: Role;
  /** Whether the page was opened with the password of a desk. A guest may only watch, add and manage jobs. */
  isGuest: boolean;
  /** Whether this user may have their own workflows; others run effects only. A guest of a desk may not add any. */
  hasOwnWorkflows: boolean;
}

export function useSession(): Session {
  const { data: user } = useSuspenseQuery(me);
  const { data: found } = useSuspenseQuery(desk);
  const role = found ? "desk" : user.is_admin ? "admin" : "user";
  return {
    me: user,
    desk: found,
    role,
    isGuest: found?.is_guest === true,
    hasOwnWorkflows: user.own_workflows != null,
  };
}
