import { useForm } from "@/areas/create/form";
import { type Choice, primaryOf } from "@/areas/create/inputs";
import { Heading } from "@/kit";
import { DropZone } from "@/kit/DropZone";
import { studio } from "@/texts/studio";
import { EffectSettings } from "./EffectSettings";
import styles from "./studio.module.css";

const texts = studio.effect;

/** The form of an effect as its customers see it, without uploads. */
export function EffectPreview({ choice }: { choice: Choice }) {
  const form = useForm(choice);
  const primary = primaryOf(choice);
  return (
    <>
      {primary && (
        <section className={styles.part} aria-label={texts.yours[primary.type]}>
          <Heading>{texts.yours[primary.type]}</Heading>
          <DropZone
            title={texts.drop[primary.type] ?? texts.drop.video}
            hint={texts.dropHint}
            accept={`${primary.type}/*`}
            isMany={false}
            isDisabled
            onFiles={() => {}}
          />
        </section>
      )}
      <EffectSettings form={form} isDisabled />
    </>
  );
}
