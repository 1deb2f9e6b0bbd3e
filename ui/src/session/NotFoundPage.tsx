import { Link } from "@tanstack/react-router";
import { ArrowLeft, Compass } from "lucide-react";
import { Button, buttonClass, EmptyState } from "@/kit";
import { useDocumentTitle } from "@/lib/document-title";
import { common } from "@/texts/common";
import { useSession } from "./session";

const HOME = { desk: "/queue", user: "/studio", admin: "/console" } as const;

export function NotFoundPage() {
  const { role } = useSession();
  useDocumentTitle(common.problems.nowhere);
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
