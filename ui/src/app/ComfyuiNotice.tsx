import { useQuery } from "@tanstack/react-query";
import { TriangleAlert } from "lucide-react";
import { comfyuiUnreachable } from "@/api/queries";
import { useSession } from "@/session/session";
import { common } from "@/texts/common";
import styles from "./Notice.module.css";

/** Says on every page why a ComfyUI of the desk cannot be used. */
export function ComfyuiNotice() {
  const { desk } = useSession();
  const { data = [] } = useQuery({ ...comfyuiUnreachable, enabled: desk !== null });
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
