import { Link } from "@tanstack/react-router";
import { Compass } from "lucide-react";
import { sentence } from "@/api/problem";
import { Button, buttonClass, EmptyState, ErrorCard } from "@/kit";
import { common } from "@/texts/common";
import styles from "./Shell.module.css";

// a part that was built into a newer version of the app is gone from this server
const isNotLoaded = (text: string) => /dynamically imported|importing a module|module script|preload CSS/i.test(text);

/** Shown in the place of what stopped working; the rest of the app goes on. */
export function Stopped({ error }: { error: unknown }) {
  const text = sentence(error);
  const [title, advice] = isNotLoaded(text)
    ? [common.problems.notLoaded, common.problems.notLoadedAdvice]
    : [common.problems.broken, common.problems.brokenAdvice];
  return (
    <div className={styles.problem}>
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

export function Nowhere() {
  return (
    <EmptyState icon={Compass} title={common.problems.nowhere} text={common.problems.nowhereAdvice}>
      <Link to="/queue" className={buttonClass({ look: "primary" })}>
        {common.problems.toQueue}
      </Link>
    </EmptyState>
  );
}
