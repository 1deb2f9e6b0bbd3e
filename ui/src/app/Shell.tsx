import { useQuery } from "@tanstack/react-query";
import { Outlet, useLocation, useNavigate } from "@tanstack/react-router";
import { Keyboard as KeyboardIcon } from "lucide-react";
import { lazy, Suspense, useEffect, useState } from "react";
import { counts } from "@/api/queries";
import { Toasts } from "@/kit";
import { useCommands } from "@/lib/commands";
import { titleCutText } from "@/lib/cut-texts";
import { usePendingBadge } from "@/lib/document-title";
import { keyboard, useKeys } from "@/lib/keyboard";
import { savedFilters, saveFilters } from "@/lib/saved-filters";
import type { Search } from "@/lib/search-params";
import { NotFoundPage } from "@/session/NotFoundPage";
import { useIsSignInRequested } from "@/session/renewal";
import { useSession } from "@/session/session";
import { common } from "@/texts/common";
import { areasOf, isGuestPage } from "./areas";
import { ComfyuiNotice } from "./ComfyuiNotice";
import { DropOverlay } from "./DropOverlay";
import { LiveNotice } from "./LiveNotice";
import { NavigationRail } from "./NavigationRail";
import { notify, useFinishedWork, useNotifications } from "./notifications";
import { PauseNotice } from "./PauseNotice";
import styles from "./Shell.module.css";
import { SHEETS, type Sheet } from "./sheets";
import { THEMES, useTheme } from "./theme";

const Palette = lazy(() => import("./Palette"));
const DeskSheet = lazy(() => import("./DeskSheet"));
const SettingsSheet = lazy(() => import("./SettingsSheet"));
const PhoneSheet = lazy(() => import("./PhoneSheet"));
const KeySheet = lazy(() => import("./KeySheet"));
const SignInAgain = lazy(() => import("./SignInAgain"));

type Overlay = "palette" | "keys" | Sheet | null;

/** The frame around all pages that need a session. */
export function Shell() {
  const { isGuest } = useSession();
  const [overlay, setOverlay] = useState<Overlay>(null);
  const { data } = useQuery(counts);
  const pending = (data?.running ?? 0) + (data?.waiting ?? 0);
  const location = useLocation();
  useEffect(() => saveFilters(location.pathname, location.search as Search), [location]);
  const isSignInRequested = useIsSignInRequested();
  const isPaused = Boolean(data?.pausedAt);
  usePendingBadge(pending, isPaused);
  useKeyboardEvents();
  useTitlesOfCutTexts();
  useNotificationsOfFinishedWork();
  useGlobalShortcuts(setOverlay);
  const close = () => setOverlay(null);

  return (
    <div className={styles.shell}>
      <a className={styles.skip} href="#main">
        {common.skip}
      </a>
      <NavigationRail
        pending={pending}
        isPaused={isPaused}
        onPalette={() => setOverlay("palette")}
        onSheet={setOverlay}
      />
      <main className={styles.main} id="main" tabIndex={-1}>
        <PauseNotice />
        <ComfyuiNotice onSettings={() => setOverlay("settings")} />
        {isGuest && !isGuestPage(location.pathname) ? <NotFoundPage /> : <Outlet />}
      </main>
      <LiveNotice />
      <DropOverlay />
      <Toasts />
      <Suspense>
        {overlay === "palette" && <Palette onClose={close} />}
        {overlay === "desk" && <DeskSheet onClose={close} />}
        {overlay === "settings" && <SettingsSheet onClose={close} />}
        {overlay === "phone" && <PhoneSheet onClose={close} />}
        {isSignInRequested && <SignInAgain />}
        {overlay === "keys" && <KeySheet onClose={close} />}
      </Suspense>
    </div>
  );
}

function useKeyboardEvents(): void {
  useEffect(() => {
    addEventListener("keydown", keyboard.onKeyDown);
    addEventListener("keydown", keyboard.onKeyDownCapture, true);
    return () => {
      removeEventListener("keydown", keyboard.onKeyDown);
      removeEventListener("keydown", keyboard.onKeyDownCapture, true);
    };
  }, []);
}

function useTitlesOfCutTexts(): void {
  useEffect(() => {
    addEventListener("pointerover", titleCutText);
    return () => removeEventListener("pointerover", titleCutText);
  }, []);
}

function useNotificationsOfFinishedWork(): void {
  const navigate = useNavigate();
  const { isOn } = useNotifications();
  useFinishedWork((finished) => {
    if (!isOn) return;
    const search = finished.isBatch ? { batch: finished.id } : { job: finished.id };
    notify(finished, () => void navigate({ to: "/queue", search }));
  });
}

function useGlobalShortcuts(setOverlay: (change: (before: Overlay) => Overlay) => void): void {
  const { role, isGuest } = useSession();
  const navigate = useNavigate();
  const [, setTheme] = useTheme();
  const { keys, palette } = common;
  const showKeys = () => setOverlay(() => "keys");
  const areas = areasOf(role).map((each) => ({
    ...each,
    keys: `g ${each.key}`,
    run: () => void navigate({ to: each.path, search: savedFilters(each.path) }),
  }));
  useKeys([
    {
      keys: "mod+k",
      name: keys.openPalette,
      group: keys.everywhere,
      whileTyping: true,
      overDialogs: true,
      run: () => setOverlay((before) => (before === "palette" ? null : "palette")),
    },
    { keys: "?", name: keys.showKeys, group: keys.everywhere, run: showKeys },
    { keys: "c", name: keys.create, group: keys.everywhere, run: () => void navigate({ to: "/create" }) },
    ...areas.map((each) => ({
      keys: each.keys,
      name: keys.goTo(each.name),
      group: keys.everywhere,
      run: each.run,
    })),
  ]);
  useCommands([
    ...areas.map((each) => ({
      id: each.path,
      name: each.name,
      group: palette.go,
      icon: each.icon,
      keys: each.keys,
      run: each.run,
    })),
    ...THEMES.map((each) => ({
      id: `theme-${each}`,
      name: common.theme.next(common.theme[each]),
      group: common.settings,
      run: () => setTheme(each),
    })),
    { id: "keys", name: keys.showKeys, group: common.settings, icon: KeyboardIcon, keys: "?", run: showKeys },
    ...(role === "desk" && !isGuest
      ? SHEETS.map(([sheet, icon, name]) => ({
          id: sheet,
          name,
          group: common.settings,
          icon,
          run: () => setOverlay(() => sheet),
        }))
      : []),
  ]);
}
