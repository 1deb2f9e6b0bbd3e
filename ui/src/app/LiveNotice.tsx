import { WifiOff } from "lucide-react";
import { useEffect, useRef, useState } from "react";
import { toast } from "@/kit";
import { useLiveState } from "@/live";
import { common } from "@/texts/common";
import styles from "./LiveNotice.module.css";

/** Longer than a normal reconnect, so that short interruptions are not shown. */
const DELAY_MS = 1500;

/** Shows when the connection is lost and when it is restored. */
export function LiveNotice() {
  const state = useLiveState();
  const isLost = state === "offline" || state === "reconnecting";
  const [isShown, setShown] = useState(false);
  const wasShown = useRef(false);
  useEffect(() => {
    if (!isLost) {
      if (wasShown.current) toast({ text: common.live.back, tone: "good" });
      wasShown.current = false;
      setShown(false);
      return;
    }
    const timer = setTimeout(() => {
      wasShown.current = true;
      setShown(true);
    }, DELAY_MS);
    return () => clearTimeout(timer);
  }, [isLost]);
  return (
    <div role="status" className={styles.status}>
      {isShown && isLost && (
        <div className={styles.notice}>
          <WifiOff aria-hidden />
          {common.live[state]}
        </div>
      )}
    </div>
  );
}
