import { useEffect } from "react";
import { get } from "@/api/client";
import { Problem, sentence } from "@/api/problem";
import { Button, ErrorCard } from "@/kit";
import { common } from "@/texts/common";
import styles from "./CrashPage.module.css";
import { PageNotLoaded } from "./lazy-page";

const CHECK_MS = 2000;
/** A page that fails sooner after loading is not reloaded, because it would probably fail again. */
const MIN_AGE_MS = 10_000;

/** Whether the server was unreachable, or was updated and no longer has the scripts of the old version. */
const isConnectionError = (error: unknown): boolean =>
  error instanceof PageNotLoaded ||
  (error instanceof Problem && error.isAway) ||
  /dynamically imported|importing a module|module script|preload CSS/i.test(sentence(error));

/** Reloads the page when the server responds. */
function useReloadWhenBack(isWaiting: boolean): void {
  useEffect(() => {
    if (!isWaiting) return;
    let wasAway = false;
    // Read only once: a page that fails soon after each load would be reloaded forever.
    const isOldEnough = performance.now() > MIN_AGE_MS;
    const check = async () => {
      const isAway = await get("/api/entry").then(
        () => false,
        (thrown: unknown) => thrown instanceof Problem && thrown.isDown,
      );
      wasAway ||= isAway;
      if (!isAway && (wasAway || isOldEnough)) location.reload();
    };
    const timer = setInterval(() => void check(), CHECK_MS);
    void check();
    return () => clearInterval(timer);
  }, [isWaiting]);
}

/** Replaces a page that threw an error. The rest of the app keeps working. */
export function CrashPage({ error }: { error: unknown }) {
  const text = sentence(error);
  const isWaiting = isConnectionError(error);
  useReloadWhenBack(isWaiting);
  const [title, advice] = isWaiting
    ? [common.problems.notLoaded, common.problems.notLoadedAdvice]
    : [common.problems.broken, common.problems.brokenAdvice];
  return (
    <div className={styles.page}>
      <ErrorCard
        title={title}
        details={error instanceof Error ? (error.stack ?? text) : text}
        actions={<Button onClick={() => location.reload()}>{common.problems.reload}</Button>}
      >
        {advice}
      </ErrorCard>
    </div>
  );
}
