// The areas of the app and the roles that see them. Add a new area here and in `routes.tsx`.

import { Gauge, Images, type LucideIcon, Plus, Rows3, Sparkles, Wallet } from "lucide-react";
import type { Role } from "@/session/session";
import { common } from "@/texts/common";

export interface Area {
  path: "/studio" | "/create" | "/queue" | "/gallery" | "/wallet" | "/console";
  name: string;
  icon: LucideIcon;
  /** Shortcut after `g`. */
  key: string;
  roles: readonly Role[];
}

const ALL_ROLES: readonly Role[] = ["desk", "user", "admin"];
const SERVER_ROLES: readonly Role[] = ["user", "admin"];

const AREAS: readonly Area[] = [
  { path: "/studio", name: common.areas.studio, icon: Sparkles, key: "s", roles: SERVER_ROLES },
  { path: "/create", name: common.areas.create, icon: Plus, key: "c", roles: ALL_ROLES },
  { path: "/queue", name: common.areas.queue, icon: Rows3, key: "q", roles: ALL_ROLES },
  { path: "/gallery", name: common.areas.gallery, icon: Images, key: "g", roles: ALL_ROLES },
  { path: "/wallet", name: common.areas.wallet, icon: Wallet, key: "w", roles: SERVER_ROLES },
  { path: "/console", name: common.areas.console, icon: Gauge, key: "o", roles: ["admin"] },
];

export const areasOf = (role: Role): readonly Area[] => AREAS.filter((each) => each.roles.includes(role));

const GUEST_PAGES = ["/create", "/queue", "/gallery", "/jobs"];

/** Whether guests of a desk may open a page. The server refuses their requests for other pages. */
export const isGuestPage = (path: string): boolean =>
  path === "/" || GUEST_PAGES.some((each) => path === each || path.startsWith(`${each}/`));
