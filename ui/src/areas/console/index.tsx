import { Link, Outlet, useLocation } from "@tanstack/react-router";
import {
  Boxes,
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
import { useEffect, useRef } from "react";
import { NotFoundPage } from "@/session/NotFoundPage";
import { useSession } from "@/session/session";
import { console as texts } from "@/texts/console";
import styles from "./console.module.css";
import { useConsoleLive } from "./shared/live";

interface Page {
  to: string;
  name: string;
  icon: LucideIcon;
}

const { pages } = texts;
const PAGES: readonly Page[] = [
  { to: "/console", name: pages.overview, icon: Gauge },
  { to: "/console/workers", name: pages.workers, icon: Cpu },
  { to: "/console/fleets", name: pages.fleets, icon: Boxes },
  { to: "/console/dispatches", name: pages.dispatches, icon: ListOrdered },
  { to: "/console/workflows", name: pages.workflows, icon: Workflow },
  { to: "/console/effects", name: pages.effects, icon: Sparkles },
  { to: "/console/tenants", name: pages.tenants, icon: Users },
  { to: "/console/webhooks", name: pages.webhooks, icon: Webhook },
  { to: "/console/reconcile", name: pages.reconcile, icon: Scale },
  { to: "/console/audit", name: pages.audit, icon: ScrollText },
  { to: "/console/settings", name: pages.settings, icon: Settings2 },
];

/** Administrators only; others get the 404 page. */
export default function Console() {
  return useSession().role === "admin" ? <Frame /> : <NotFoundPage />;
}

/** Navigation and the open page. */
function Frame() {
  useConsoleLive();
  const { pathname } = useLocation();
  const strip = useRef<HTMLElement>(null);
  useEffect(() => {
    // on a phone the pages are in a row that scrolls
    const links = [...(strip.current?.querySelectorAll("a") ?? [])];
    const current = links.findLast((each) => pathname.startsWith(each.pathname));
    current?.scrollIntoView({ block: "nearest", inline: "center" });
  }, [pathname]);
  return (
    <div className={styles.console}>
      <nav ref={strip} className={styles.pages} aria-label={texts.navigation}>
        {PAGES.map(({ to, name, icon: Icon }) => (
          <Link
            key={to}
            to={to}
            className={styles.page}
            activeOptions={{ exact: to === "/console", includeSearch: false }}
            activeProps={{ "aria-current": "page" }}
          >
            <Icon aria-hidden />
            {name}
          </Link>
        ))}
      </nav>
      <div className={styles.open}>
        <Outlet />
      </div>
    </div>
  );
}
