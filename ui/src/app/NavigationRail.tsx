import { Link, useLocation } from "@tanstack/react-router";
import { Command, Pause, Settings2 } from "lucide-react";
import { classes, Popover } from "@/kit";
import { savedFilters } from "@/lib/saved-filters";
import { BrandLogo } from "@/session/BrandLogo";
import { useBrand } from "@/session/brand";
import { useSession } from "@/session/session";
import { common } from "@/texts/common";
import { areasOf } from "./areas";
import styles from "./NavigationRail.module.css";
import { SettingsMenu } from "./SettingsMenu";
import type { Sheet } from "./sheets";

interface NavigationRailProps {
  /** Number of jobs that run or wait. */
  pending: number;
  /** Whether the queue is paused. */
  isPaused: boolean;
  onPalette: () => void;
  onSheet: (sheet: Sheet) => void;
}

export function NavigationRail({ pending, isPaused, onPalette, onSheet }: NavigationRailProps) {
  const { role } = useSession();
  const brand = useBrand().name ?? common.name;
  const current = useLocation({ select: (each) => each.pathname });
  return (
    <nav className={styles.rail} aria-label={common.mainNavigation}>
      <Link to={role === "desk" ? "/queue" : "/"} className={styles.home} aria-label={brand} title={brand}>
        <BrandLogo />
      </Link>
      {areasOf(role).map(({ path, name, icon: Icon }) => (
        <Link
          key={path}
          to={path}
          // restores the filters of the area; clicking the current area clears them
          search={path === current ? {} : savedFilters(path)}
          activeOptions={{ includeSearch: false }}
          className={styles.link}
          activeProps={{ "aria-current": "page" }}
        >
          <Icon aria-hidden />
          {name}
          {path === "/queue" && (isPaused || pending > 0) && (
            <span className={styles.pending} data-paused={isPaused || undefined}>
              {isPaused && <Pause aria-label={common.pause.name} />}
              {pending > 99 ? "99+" : pending || ""}
            </span>
          )}
        </Link>
      ))}
      <div className={styles.end}>
        <button type="button" className={classes(styles.link, styles.wideOnly)} onClick={onPalette}>
          <Command aria-hidden />
          {common.palette.name}
        </button>
        <Popover
          name={common.settings}
          align="end"
          trigger={
            <button type="button" className={styles.link}>
              <Settings2 aria-hidden />
              {common.settings}
            </button>
          }
        >
          <SettingsMenu onSheet={onSheet} />
        </Popover>
      </div>
    </nav>
  );
}
