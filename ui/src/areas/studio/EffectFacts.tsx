import type { ReactNode } from "react";
import { kindOf } from "@/kit/Media";
import { studio, tokens } from "@/texts/studio";
import type { StudioEffect } from "./queries";
import styles from "./studio.module.css";

const texts = studio.effect;

export function EffectFacts({ effect, balance: left }: { effect: StudioEffect; balance: number | undefined }) {
  const kind = kindOf(effect.output_mime_type);
  const seconds = effect.last_processing_time_seconds;
  const facts: [string, ReactNode][] = [[texts.cost, <strong key="cost">{studio.cost(effect.credits_cost)}</strong>]];
  if (left !== undefined) {
    facts.push([texts.balance, tokens(left)]);
    if (left >= effect.credits_cost && effect.credits_cost > 0) {
      facts.push([texts.after, tokens(left - effect.credits_cost)]);
    }
  }
  if (typeof seconds === "number") facts.push([texts.time, studio.takes(seconds)]);
  facts.push([texts.result, `${studio.makes[kind]} (${effect.output_extension})`]);
  return (
    <dl className={styles.facts}>
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}
