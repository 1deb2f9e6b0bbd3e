// Names and icons of job actions.

import {
  ArrowDown,
  ArrowUp,
  Ban,
  ChevronsUp,
  Dices,
  type LucideIcon,
  Pause,
  Play,
  RotateCcw,
  Trash2,
} from "lucide-react";
import type { MenuItem } from "@/kit";
import { queue as texts } from "@/texts/queue";
import { type ActionTarget, canPrioritize, type JobAction, PRIORITIES } from "./actions";

export const ACTION_ICONS: Readonly<Record<JobAction, LucideIcon>> = {
  pause: Pause,
  pauseNow: Pause,
  resume: Play,
  next: ChevronsUp,
  up: ArrowUp,
  down: ArrowDown,
  retry: RotateCcw,
  retrySeeds: Dices,
  retryCanceled: RotateCcw,
  again: RotateCcw,
  againSeeds: Dices,
  cancel: Ban,
  delete: Trash2,
};

/** The name of an action for this job or batch. */
export function actionName(action: JobAction, { isBatch, counts }: ActionTarget): string {
  const { verbs } = texts;
  if (!isBatch) return action === "retryCanceled" ? verbs.retry : verbs[action];
  switch (action) {
    case "pause":
      return counts.processing ? verbs.pauseBatch : verbs.pause;
    case "retry":
      return verbs.retryFailed(counts.failed ?? 0);
    case "retryCanceled":
      return verbs.retryCanceled(counts.canceled ?? 0);
    case "again":
      return verbs.againBatch;
    case "againSeeds":
      return verbs.againSeedsBatch;
    default:
      return verbs[action];
  }
}

export const actionItem = (action: JobAction, target: ActionTarget, run: () => void): MenuItem => ({
  name: actionName(action, target),
  icon: ACTION_ICONS[action],
  isDanger: action === "delete" || action === "cancel",
  run,
});

/** Menu items for the three priorities, if the priority can change. */
export const priorityItems = (target: ActionTarget, set: (priority: number) => void): MenuItem[] =>
  canPrioritize(target)
    ? (["high", "normal", "low"] as const).map((each) => ({
        name: `${texts.priority}: ${texts.priorities[each]}`,
        isOn: target.priority === PRIORITIES[each],
        run: () => set(PRIORITIES[each]),
      }))
    : [];
