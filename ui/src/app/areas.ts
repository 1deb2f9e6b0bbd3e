// The areas of the app, and who sees them. A new one is added here and in `routes.tsx`.

import { Gauge, Images, type LucideIcon, Plus, Rows3, Sparkles, Wallet } from "lucide-react";
import { common } from "@/texts/common";
import type { Role } from "./session";

export interface Area {
  path: "/studio" | "/create" | "/queue" | "/gallery" | "/wallet" | "/console";
  name: string;
  icon: LucideIcon;
  /** After `g`. */
  key: string;
  roles: readonly Role[];
}

const EVERYBODY: readonly Role[] = ["desk", "user", "admin"];
const ON_A_SERVER: readonly Role[] = ["user", "admin"];

const AREAS: readonly Area[] = [
  { path: "/studio", name: common.areas.studio, icon: Sparkles, key: "s", roles: ON_A_SERVER },
  { path: "/create", name: common.areas.create, icon: Plus, key: "c", roles: EVERYBODY },
  { path: "/queue", name: common.areas.queue, icon: Rows3, key: "q", roles: EVERYBODY },
  { path: "/gallery", name: common.areas.gallery, icon: Images, key: "g", roles: EVERYBODY },
  { path: "/wallet", name: common.areas.wallet, icon: Wallet, key: "w", roles: ON_A_SERVER },
  { path: "/console", name: common.areas.console, icon: Gauge, key: "o", roles: ["admin"] },
];

export const areasOf = (role: Role): readonly Area[] => AREAS.filter((each) => each.roles.includes(role));
