// Sheets that the owner of a desk opens from the settings menu and the palette.

import { Cpu, Settings2, Smartphone } from "lucide-react";
import { desk } from "@/texts/desk";
import { settings } from "@/texts/settings";

export type Sheet = "desk" | "settings" | "phone";

export const SHEETS: readonly (readonly [Sheet, typeof Cpu, string])[] = [
  ["settings", Settings2, settings.open],
  ["phone", Smartphone, settings.phone.open],
  ["desk", Cpu, desk.open],
];
