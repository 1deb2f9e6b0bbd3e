import { useQuery } from "@tanstack/react-query";
import { TriangleAlert } from "lucide-react";
import { comfyuiUnreachable } from "@/api/queries";
import { Button } from "@/kit";
import { useSession } from "@/session/session";
import { common } from "@/texts/common";
import { settings } from "@/texts/settings";
import styles from "./Notice.module.css";

/** Shows on every page why a ComfyUI of the desk cannot be used, and links the owner to the settings. */
export function ComfyuiNotice({ onSettings }: { onSettings: () => void }) {
  const { desk, isGuest } = useSession();
  const { data = [] } = useQuery({ ...comfyuiUnreachable, enabled: desk !== null });
  return (
    <div role="status" aria-label={common.comfyui} className={styles.notice}>
      {data.map((each) => (
        <p key={each}>
          <TriangleAlert aria-hidden />
          <span>{each}</span>
          {!isGuest && (
            <Button size="small" className={styles.action ?? ""} onClick={onSettings}>
              {settings.open}
            </Button>
          )}
        </p>
      ))}
    </div>
  );
}
