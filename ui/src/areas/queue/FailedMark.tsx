import { TriangleAlert } from "lucide-react";
import { common } from "@/texts/common";
import styles from "./FailedMark.module.css";

/** Covers a tile that has no output. Shows the reason while the pointer is over it. */
export const FailedMark = ({ error }: { error: string | null | undefined }) => (
  <span className={styles.mark} title={error || common.status.failed} data-failed>
    <TriangleAlert aria-hidden />
  </span>
);
