import { useQuery } from "@tanstack/react-query";
import { Link, Outlet, useLocation, useMatchRoute, useNavigate } from "@tanstack/react-router";
import {
  Command as CommandIcon,
  Cpu,
  Keyboard as KeyboardIcon,
  LogOut,
  Settings2,
  TriangleAlert,
  Upload,
  WifiOff,
} from "lucide-react";
import { lazy, Suspense, useEffect, useRef, useState } from "react";
import { post } from "@/api/client";
import { comfyuiAway, counts } from "@/api/queries";
import { Button, Popover, PopoverClose, Switch, Toasts, toast, toastProblem } from "@/kit";
import { Segmented } from "@/kit/Segmented";
import { useLiveState } from "@/live";
import { common } from "@/texts/common";
import { desk } from "@/texts/desk";
import { entry } from "@/texts/entry";
import { areasOf } from "./areas";
import { useCommands } from "./commands";
import { keepDropped, useDropping, useIsOver } from "./dropping";
import { keyboard, useKeys } from "./keyboard";
import { lastSearch, remember } from "./last";
import { Mark } from "./Mark";
import { notify, useEnds, useNotifications } from "./notifications";
import { useIsAsked } from "./renewal";
import styles from "./Shell.module.css";
import type { Search } from "./search";
import { useSession } from "./session";
import { THEMES, type Theme, useTheme } from "./theme";
import { useBadge } from "./title";

const Palette = lazy(() => import("./Palette"));
const DeskSheet = lazy(() => import("./DeskSheet"));
const KeySheet = lazy(() => import("./KeySheet"));
const SignInAgain = lazy(() => import("./SignInAgain"));

export function Shell() {
  const { role } = useSession();
  const areas = areasOf(role);
  const navigate = useNavigate();
  const [opened, setOpened] = useState<"palette" | "keys" | "desk" | null>(null);
  const [, setTheme] = useTheme();
  const { data: now } = useQuery(counts);
  const pending = (now?.running ?? 0) + (now?.waiting ?? 0);
  const notifications = useNotifications();
  const location = useLocation();
  useEffect(() => remember(location.pathname, location.search as Search), [location]);
  const isAsked = useIsAsked();

  useBadge(pending);
  useEffect(() => {
    addEventListener("keydown", keyboard.onKeyDown);
    addEventListener("keydown", keyboard.onKeyDownCapture, true);
    return () => {
      removeEventListener("keydown", keyboard.onKeyDown);
      removeEventListener("keydown", keyboard.onKeyDownCapture, true);
    };
  }, []);
  useEnds((end) => {
    if (notifications.isOn) {
      notify(end, () => void navigate({ to: "/queue", search: end.isBatch ? { batch: end.id } : { job: end.id } }));
    }
  });
  useDropping((files) => {
    keepDropped(files);
    void navigate({ to: "/create" });
  });

  const { keys, palette } = common;
  useKeys([
    {
      keys: "mod+k",
      name: keys.openPalette,
      group: keys.everywhere,
      whileTyping: true,
      overDialogs: true,
      run: () => setOpened((now) => (now === "palette" ? null : "palette")),
    },
    { keys: "?", name: keys.showKeys, group: keys.everywhere, run: () => setOpened("keys") },
    { keys: "c", name: keys.create, group: keys.everywhere, run: () => void navigate({ to: "/create" }) },
    ...areas.map((each) => ({
      keys: `g ${each.key}`,
      name: keys.goTo(each.name),
      group: keys.everywhere,
      run: () => void navigate({ to: each.path, search: lastSearch(each.path) as never }),
    })),
  ]);
  useCommands([
    ...areas.map((each) => ({
      id: each.path,
      name: each.name,
      group: palette.go,
      icon: each.icon,
      keys: `g ${each.key}`,
      run: () => void navigate({ to: each.path, search: lastSearch(each.path) as never }),
    })),
    ...THEMES.map((each) => ({
      id: `theme-${each}`,
      name: common.theme.next(common.theme[each]),
      group: common.settings,
      run: () => setTheme(each),
    })),
    {
      id: "keys",
      name: keys.showKeys,
      group: common.settings,
      icon: KeyboardIcon,
      keys: "?",
      run: () => setOpened("keys"),
    },
    ...(role === "desk"
      ? [{ id: "desk", name: desk.open, group: common.settings, icon: Cpu, run: () => setOpened("desk") }]
      : []),
  ]);

  return (
    <div className={styles.shell}>
      <a className={styles.skip} href="#main">
        {common.skip}
      </a>
      <nav className={styles.rail} aria-label={common.mainNavigation}>
        <Link
          to={role === "desk" ? "/queue" : "/"}
          className={styles.home}
          aria-label={common.name}
          title={common.name}
        >
          <Mark />
        </Link>
        {areas.map(({ path, name, icon: Icon }) => (
          <Link
            key={path}
            to={path}
            // from elsewhere as it was left; pressed again, without filters
            search={(path === location.pathname ? {} : lastSearch(path)) as never}
            activeOptions={{ includeSearch: false }}
            className={styles.link}
            activeProps={{ "aria-current": "page" }}
          >
            <Icon aria-hidden />
            {name}
            {path === "/queue" && pending > 0 && (
              <span className={styles.pending}>{pending > 99 ? "99+" : pending}</span>
            )}
          </Link>
        ))}
        <div className={styles.end}>
          <button type="button" className={`${styles.link} ${styles.wideOnly}`} onClick={() => setOpened("palette")}>
            <CommandIcon aria-hidden />
            {palette.name}
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
            <Settings onDesk={() => setOpened("desk")} />
          </Popover>
        </div>
      </nav>
      <main className={styles.main} id="main" tabIndex={-1}>
        <Away />
        <Outlet />
      </main>
      <LiveNotice />
      <Dropping />
      <Toasts />
      <Suspense>
        {opened === "palette" && <Palette onClose={() => setOpened(null)} />}
        {opened === "desk" && <DeskSheet onClose={() => setOpened(null)} />}
        {isAsked && <SignInAgain />}
        {opened === "keys" && <KeySheet onClose={() => setOpened(null)} />}
      </Suspense>
    </div>
  );
}

/** What keeps all jobs waiting is said wherever one is. The queue says it by itself, where its lanes do not. */
function Away() {
  const { desk } = useSession();
  const isQueue = Boolean(useMatchRoute()({ to: "/queue" }));
  const { data = [] } = useQuery({ ...comfyuiAway, enabled: desk !== null && !isQueue });
  if (isQueue) return null;
  return (
    <div role="status" aria-label={common.comfyui} className={styles.away}>
      {data.map((each) => (
        <p key={each}>
          <TriangleAlert aria-hidden />
          {each}
        </p>
      ))}
    </div>
  );
}

async function signOut(): Promise<void> {
  try {
    await post("/api/logout");
    location.assign("/sign-in");
  } catch (thrown) {
    toastProblem(thrown);
  }
}

function Settings({ onDesk }: { onDesk: () => void }) {
  const [theme, setTheme] = useTheme();
  const { me, role } = useSession();
  const { isOn, isPossible, change } = useNotifications();
  return (
    <div className={styles.settings}>
      <div className={styles.choices}>
        <span>{common.theme.name}</span>
        <Segmented
          name={common.theme.name}
          value={theme}
          choices={THEMES.map((each) => ({ value: each, name: common.theme[each] }))}
          onChange={(next) => setTheme(next as Theme)}
        />
      </div>
      <Switch
        name={common.notifications.name}
        hint={isPossible ? common.notifications.hint : common.notifications.missing}
        isOn={isOn}
        isDisabled={!isPossible}
        onChange={(wanted) => void change(wanted)}
      />
      {role === "desk" && (
        <PopoverClose>
          <Button icon={Cpu} onClick={onDesk}>
            {desk.open}
          </Button>
        </PopoverClose>
      )}
      {role !== "desk" && (
        <div className={styles.account}>
          <span title={me.email}>{me.email}</span>
          <Button size="small" icon={LogOut} onClick={() => void signOut()}>
            {entry.signOut}
          </Button>
        </div>
      )}
    </div>
  );
}

/** Longer than a reconnection takes: nobody is told of what mends itself at once. */
const NOTICE_MS = 1500;

function LiveNotice() {
  const state = useLiveState();
  const isBad = state === "offline" || state === "reconnecting";
  const [isShown, setShown] = useState(false);
  const wasShown = useRef(false);
  useEffect(() => {
    if (!isBad) {
      if (wasShown.current) toast({ text: common.live.back, tone: "good" });
      wasShown.current = false;
      setShown(false);
      return;
    }
    const timer = setTimeout(() => {
      wasShown.current = true;
      setShown(true);
    }, NOTICE_MS);
    return () => clearTimeout(timer);
  }, [isBad]);
  return (
    <div role="status" className={styles.status}>
      {isShown && isBad && (
        <div className={styles.notice}>
          <WifiOff aria-hidden />
          {common.live[state]}
        </div>
      )}
    </div>
  );
}

function Dropping() {
  if (!useIsOver()) return null;
  return (
    <div className={styles.dropping}>
      <Upload aria-hidden strokeWidth={1.5} />
      <strong>{common.drop.title}</strong>
      <span>{common.drop.hint}</span>
    </div>
  );
}
