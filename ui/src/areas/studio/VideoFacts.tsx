import { Link } from "@tanstack/react-router";
import type { ReactNode } from "react";
import type { Job } from "@/api/types";
import { hasEnded } from "@/jobs/job";
import { Heading } from "@/kit";
import { ago, duration } from "@/texts/common";
import { studio } from "@/texts/studio";
import { useEffectOf } from "./queries";
import styles from "./studio.module.css";

const texts = studio.video;

export function VideoFacts({ job }: { job: Job }) {
  const effect = useEffectOf(job);
  const facts: [string, ReactNode][] = [];
  if (effect) {
    facts.push([
      texts.effect,
      <Link key="effect" to="/studio/effects/$slug" params={{ slug: effect.slug }}>
        {effect.name}
      </Link>,
    ]);
  } else if (job.workflow_name) facts.push([texts.effect, job.workflow_name]);
  if (job.input?.name) facts.push([texts.file, job.input.name]);
  facts.push([texts.made, ago(job.created_at)]);
  const [output] = job.outputs;
  if (output?.width && output.height) {
    const long = typeof output.seconds === "number" ? ` · ${duration(output.seconds)}` : "";
    facts.push([texts.size, `${output.width} × ${output.height}${long}`]);
  }
  if (!hasEnded(job)) facts.push([texts.tokens, texts.reserved(job.reserved_tokens)]);
  return (
    <section className={styles.part}>
      <Heading>{texts.about}</Heading>
      <dl className={styles.facts}>
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      <Link to="/jobs/$id" params={{ id: job.id }} className={styles.more}>
        {texts.details}
      </Link>
    </section>
  );
}
