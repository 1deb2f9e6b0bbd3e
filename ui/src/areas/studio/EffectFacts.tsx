import type { ReactNode } from "react";
import { kindOf } from "@/kit/Media";
import { studio, tokens } from "@/texts/studio";
import type { StudioEffect } from "./queries";
import styles from "./studio.module.css";

const texts = studio.effect;

interface EffectFactsProps {
  effect: StudioEffect;
  /** Null if the price depends on inputs that are still missing. */
  price: number | null;
  balance: number | undefined;
}

export function EffectFacts({ effect, price, balance: left }: EffectFactsProps) {
  const kind = kindOf(effect.output_mime_type);
  const seconds = effect.last_processing_time_seconds;
  const facts: [string, ReactNode][] = [
    [
      texts.cost,
      <strong key="cost">{price === null ? studio.costFrom(effect.credits_cost) : studio.cost(price)}</strong>,
    ],
  ];
  if (left !== undefined) {
    facts.push([texts.balance, tokens(left)]);
    if (price !== null && left >= price && price > 0) {
      facts.push([texts.after, tokens(left - price)]);
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
