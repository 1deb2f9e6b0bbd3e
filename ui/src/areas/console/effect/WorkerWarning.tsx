import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { buttonClass, ErrorCard } from "@/kit";
import { effect as texts } from "@/texts/console-effects";
import { fitting, fleets } from "../catalogue/queries";
import { missingRequirements } from "./worker-warning";

/** Warns if no fleet or no worker can run the jobs of an effect. */
export function WorkerWarning({ workflow }: { workflow: string }) {
  const { data: groups } = useQuery(fleets);
  const { data: found } = useQuery({ ...fitting(workflow), enabled: workflow !== "" });
  if (!groups) return null;
  const mapped = groups.filter((each) => each.workflow_slugs.includes(workflow));
  const missing = mapped.length && found ? missingRequirements(found.workers.items, mapped) : null;
  if (mapped.length && missing === null) return null;
  return (
    <ErrorCard
      tone="warn"
      title={missing ? texts.noWorker(missing) : texts.noFleet}
      actions={
        <Link
          to="/console/workflows/$slug"
          params={{ slug: workflow }}
          search={{ tab: "workers" }}
          className={buttonClass({ size: "small" })}
        >
          {missing ? texts.openWorkers : texts.mapFleet}
        </Link>
      }
    />
  );
}
