// The pages that the command palette opens. A test compares them with the routes.

import { Clapperboard, Coins, KeyRound, type LucideIcon, Upload, UserRound, Webhook } from "lucide-react";
import { CONSOLE_PAGES } from "@/lib/console-pages";
import type { Role } from "@/session/session";
import { common } from "@/texts/common";
import { console as consoleTexts } from "@/texts/console";
import { studio } from "@/texts/studio";
import { wallet } from "@/texts/wallet";
import { areasOf } from "./areas";

export interface PalettePage {
  to: string;
  search?: Readonly<Record<string, string>>;
  name: string;
  group: string;
  icon: LucideIcon;
}

const tab = (name: string, icon: LucideIcon, search: string): PalettePage => ({
  to: "/wallet",
  search: { tab: search },
  name,
  group: wallet.title,
  icon,
});

const { tabs } = wallet;
const SERVER_PAGES: readonly PalettePage[] = [
  { to: "/studio/videos", name: studio.videos, group: common.palette.go, icon: Clapperboard },
  { to: "/wallet", search: {}, name: tabs.balance, group: wallet.title, icon: Coins },
  tab(tabs.uploads, Upload, "uploads"),
  tab(tabs.tokens, KeyRound, "tokens"),
  tab(tabs.webhooks, Webhook, "webhooks"),
  tab(tabs.account, UserRound, "account"),
];

/** The pages inside the areas. */
export const pagesOf = (role: Role): readonly PalettePage[] => [
  ...(role === "desk" ? [] : SERVER_PAGES),
  ...(role === "admin" ? CONSOLE_PAGES.map((each) => ({ ...each, group: consoleTexts.title })) : []),
];

/** The paths of all pages that the palette opens. */
export const palettePaths = (role: Role): readonly string[] => [
  ...areasOf(role).map(({ path }) => path),
  ...pagesOf(role).map(({ to }) => to),
];
