import { useQuery } from "@tanstack/react-query";
import { TriangleAlert } from "lucide-react";
import { comfyuiUnreachable } from "@/api/queries";
import type { Slot } from "@/api/types";
import { useSession } from "@/session/session";
import styles from "./UnreachableNotice.module.css";

/** The ComfyUI that a message is about. The worker and the desk may report different reasons for the same one. */
const comfyuiOf = (message: string) => message.split(": ")[0];

interface UnreachableNoticeProps {
  slots: readonly Slot[];
  areSlotsVisible: boolean;
}

/** Why a ComfyUI cannot be used, unless a visible slot already says so. */
export function UnreachableNotice({ slots, areSlotsVisible }: UnreachableNoticeProps) {
  const { desk } = useSession();
  const { data: known = [] } = useQuery({ ...comfyuiUnreachable, enabled: desk !== null });
  const messages = new Map(
    [...known, ...slots.flatMap((each) => each.unavailable_reason ?? [])].map((each) => [comfyuiOf(each), each]),
  );
  for (const { unavailable_reason: reason, job } of slots) {
    if (reason && areSlotsVisible && !job) messages.delete(comfyuiOf(reason));
  }
  if (!messages.size) return null;
  return (
    <div className={styles.notice} role="status">
      <TriangleAlert aria-hidden />
      <p>{[...messages.values()].join(" ")}</p>
    </div>
  );
}
