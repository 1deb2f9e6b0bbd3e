import { Link, Outlet, useLocation } from "@tanstack/react-router";
import { useEffect, useRef } from "react";
import { CONSOLE_PAGES } from "@/lib/console-pages";
import { NotFoundPage } from "@/session/NotFoundPage";
import { useSession } from "@/session/session";
import { console as texts } from "@/texts/console";
import styles from "./console.module.css";
import { useConsoleLive } from "./shared/live";

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
    // on a phone, the pages are in a scrolling row
    const links = [...(strip.current?.querySelectorAll("a") ?? [])];
    const current = links.findLast((each) => pathname.startsWith(each.pathname));
    current?.scrollIntoView({ block: "nearest", inline: "center" });
  }, [pathname]);
  return (
    <div className={styles.console}>
      <nav ref={strip} className={styles.pages} aria-label={texts.navigation}>
        {CONSOLE_PAGES.map(({ to, name, icon: Icon }) => (
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
