import { Terminal } from "lucide-react";
import type { AboutJob, Job } from "@/api/types";
import { Button, Heading } from "@/kit";
import { copyText } from "@/kit/clipboard";
import { job as texts } from "@/texts/job";
import { shellCommand } from "./rerun";
import styles from "./section.module.css";

export function RerunCommand({ job, about }: { job: Job; about: AboutJob }) {
  const command = shellCommand(job, about);
  return (
    <section className={styles.section}>
      <Heading>{texts.command}</Heading>
      <pre className={styles.code}>{command}</pre>
      <div>
        <Button size="small" icon={Terminal} onClick={() => void copyText(command)}>
          {texts.copyCommand}
        </Button>
      </div>
    </section>
  );
}
