import type { ReactNode } from "react";
import type { Effect, PublicEffect } from "@/api/types";
import { Heading } from "@/kit";
import { kindOf } from "@/kit/Media";
import { studio as texts } from "@/texts/studio";
import { Cover, KIND_ICONS } from "./Cover";
import styles from "./cards.module.css";
import { byCategory } from "./categories";

interface EffectCardsProps<E extends PublicEffect> {
  effects: readonly E[];
  /** Wraps the content of a card into its link. */
  link: (effect: E, className: string, content: ReactNode) => ReactNode;
}

/** Effects as cards, under the headings of their categories. */
export function EffectCards<E extends PublicEffect>({ effects, link }: EffectCardsProps<E>) {
  const groups = byCategory(effects);
  return groups.map(([category, found]) => (
    <section key={category ?? ""} className={styles.category} aria-label={category ?? texts.effects}>
      {(category !== null || groups.length > 1) && <Heading>{category ?? texts.otherEffects}</Heading>}
      <ul className={styles.effects} aria-label={category ?? texts.effects}>
        {found.map((each) => (
          <li key={each.slug}>{link(each, styles.card ?? "", <EffectCard effect={each} />)}</li>
        ))}
      </ul>
    </section>
  ));
}

function EffectCard({ effect }: { effect: PublicEffect & Pick<Partial<Effect>, "last_processing_time_seconds"> }) {
  const kind = kindOf(effect.output_mime_type);
  const Icon = KIND_ICONS[kind];
  const seconds = effect.last_processing_time_seconds;
  return (
    <>
      <span className={styles.cover}>
        <Cover effect={effect} />
        <span className={styles.price}>
          {effect.max_credits_cost == null ? texts.cost(effect.credits_cost) : texts.costFrom(effect.credits_cost)}
        </span>
      </span>
      <span className={styles.cardText}>
        <strong>{effect.name}</strong>
        {effect.description && <span className={styles.description}>{effect.description}</span>}
        <span>
          <Icon aria-hidden />
          {texts.makes[kind]}
          {typeof seconds === "number" && ` · ${texts.takes(seconds)}`}
        </span>
      </span>
    </>
  );
}
