import { Link } from "@tanstack/react-router";
import { ArrowLeft, Compass } from "lucide-react";
import { sentence } from "@/api/problem";
import { Button, buttonClass, EmptyState, ErrorCard } from "@/kit";
import { common } from "@/texts/common";
import styles from "./Shell.module.css";
import { useSession } from "./session";
import { useTitle } from "./title";

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

const HOME = { desk: "/queue", user: "/studio", admin: "/console" } as const;

/** In the place of a page that is not there: the way back, and to where each begins. */
export function Nowhere() {
  const { role } = useSession();
  useTitle(common.problems.nowhere);
  return (
    <EmptyState icon={Compass} title={common.problems.nowhere} text={common.problems.nowhereAdvice}>
      {history.length > 1 && (
        <Button icon={ArrowLeft} onClick={() => history.back()}>
          {common.problems.back}
        </Button>
      )}
      <Link to={HOME[role]} className={buttonClass({ look: "primary" })}>
        {common.problems.home[role]}
      </Link>
    </EmptyState>
  );
}
