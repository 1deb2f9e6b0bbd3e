import { Dices, Images, Trash2 } from "lucide-react";
import type { MenuItems } from "@/kit";
import { common } from "@/texts/common";
import { kit as texts } from "@/texts/kit";

const run = () => undefined;

export const SAMPLE_MENU: MenuItems = [
  [
    { name: texts.words[2] ?? "", icon: Dices, keys: "shift+r", run },
    { name: common.areas.gallery, icon: Images, isOn: true, run },
  ],
  [{ name: texts.words[3] ?? "", icon: Trash2, isDanger: true, run }],
];
