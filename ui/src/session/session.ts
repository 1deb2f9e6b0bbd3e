import { useSuspenseQuery } from "@tanstack/react-query";
import { desk, me } from "@/api/queries";
import type { Desk, Me } from "@/api/types";

/** The owner of a desk, a user of a server, or an administrator of a server. */
export type Role = "desk" | "user" | "admin";

export interface Session {
  me: Me;
  /** null on a server */
  desk: Desk | null;
  role: Role;
}

export function useSession(): Session {
  const { data: user } = useSuspenseQuery(me);
  const { data: found } = useSuspenseQuery(desk);
  return { me: user, desk: found, role: found ? "desk" : user.is_admin ? "admin" : "user" };
}
