// The pages of the console, for its navigation and for the command palette.

import {
  Boxes,
  Coins,
  Cpu,
  Gauge,
  ListOrdered,
  type LucideIcon,
  Scale,
  ScrollText,
  Settings2,
  Sparkles,
  Users,
  Webhook,
  Workflow,
} from "lucide-react";
import { console as texts } from "@/texts/console";

interface ConsolePage {
  to: string;
  name: string;
  icon: LucideIcon;
}

const { pages } = texts;
export const CONSOLE_PAGES: readonly ConsolePage[] = [
  { to: "/console", name: pages.overview, icon: Gauge },
  { to: "/console/workers", name: pages.workers, icon: Cpu },
  { to: "/console/fleets", name: pages.fleets, icon: Boxes },
  { to: "/console/dispatches", name: pages.dispatches, icon: ListOrdered },
  { to: "/console/workflows", name: pages.workflows, icon: Workflow },
  { to: "/console/effects", name: pages.effects, icon: Sparkles },
  { to: "/console/tenants", name: pages.tenants, icon: Users },
  { to: "/console/payments", name: pages.payments, icon: Coins },
  { to: "/console/webhooks", name: pages.webhooks, icon: Webhook },
  { to: "/console/reconcile", name: pages.reconcile, icon: Scale },
  { to: "/console/audit", name: pages.audit, icon: ScrollText },
  { to: "/console/settings", name: pages.settings, icon: Settings2 },
];
