import { useQuery } from "@tanstack/react-query";
import { jobHistory } from "@/api/queries";
import type { Job } from "@/api/types";
import { Heading } from "@/kit";
import { job as texts } from "@/texts/job";
import { clockTime } from "./dates";
import styles from "./JobHistory.module.css";
import section from "./section.module.css";

export function JobHistory({ job }: { job: Job }) {
  const { data: found = [] } = useQuery(jobHistory(job.id));
  if (!found.length) return null;
  return (
    <section className={section.section}>
      <Heading>{texts.happened}</Heading>
      <ol className={styles.events}>
        {found.map((each) => (
          <li key={each.id} data-type={each.type}>
            <time dateTime={each.at}>{each.at && clockTime.format(new Date(each.at))}</time>
            <span>{texts.events[each.type] ?? each.type}</span>
          </li>
        ))}
      </ol>
    </section>
  );
}
