import { useQuery } from "@tanstack/react-query";
import { useMatchRoute } from "@tanstack/react-router";
import { TriangleAlert } from "lucide-react";
import { comfyuiUnreachable } from "@/api/queries";
import { useSession } from "@/session/session";
import { common } from "@/texts/common";
import styles from "./ComfyuiNotice.module.css";

/** Says on every page why a ComfyUI of the desk cannot be used. The queue has its own notice. */
export function ComfyuiNotice() {
  const { desk } = useSession();
  const isQueue = Boolean(useMatchRoute()({ to: "/queue" }));
  const { data = [] } = useQuery({ ...comfyuiUnreachable, enabled: desk !== null && !isQueue });
  if (isQueue) return null;
  return (
    <div role="status" aria-label={common.comfyui} className={styles.notice}>
      {data.map((each) => (
        <p key={each}>
          <TriangleAlert aria-hidden />
          {each}
        </p>
      ))}
    </div>
  );
}
