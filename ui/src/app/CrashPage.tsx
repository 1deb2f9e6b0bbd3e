import { sentence } from "@/api/problem";
import { Button, ErrorCard } from "@/kit";
import { common } from "@/texts/common";
import styles from "./CrashPage.module.css";

// after an update, the server no longer has the chunks of the old version
const isLoadError = (text: string) => /dynamically imported|importing a module|module script|preload CSS/i.test(text);

/** Replaces a page that threw an error. The rest of the app keeps working. */
export function CrashPage({ error }: { error: unknown }) {
  const text = sentence(error);
  const [title, advice] = isLoadError(text)
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
