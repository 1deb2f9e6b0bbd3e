import { useSuspenseQuery } from "@tanstack/react-query";
import { desk, me } from "@/api/queries";
import type { Desk, Me } from "@/api/types";

/** Who looks at the app: the owner of a desk, a user of a server, or an administrator of one. */
export type Role = "desk" | "user" | "admin";

export interface Session {
  me: Me;
  /** null on a server */
  desk: Desk | null;
  role: Role;
}

export function useSession(): Session {
  const { data: who } = useSuspenseQuery(me);
  const { data: found } = useSuspenseQuery(desk);
  return { me: who, desk: found, role: found ? "desk" : who.is_admin ? "admin" : "user" };
}
