import { common } from "@/texts/common";
import styles from "./LoadingPage.module.css";
import { Skeleton } from "./Skeleton";

export function LoadingPage() {
  return (
    <div className={styles.loading} role="status" aria-label={common.loading}>
      <Skeleton width={160} height={20} />
      <Skeleton height={96} />
      <Skeleton height={96} />
      <Skeleton height={96} />
    </div>
  );
}
