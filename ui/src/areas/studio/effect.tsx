import { useQuery } from "@tanstack/react-query";
import { Link, useParams } from "@tanstack/react-router";
import { ArrowLeft, FileQuestion } from "lucide-react";
import { useMemo, useState } from "react";
import { sentence } from "@/api/problem";
import { typeOf } from "@/api/uploads";
import { useForm } from "@/areas/create/form";
import { acceptsMime, type Choice, choicesOf, primaryOf } from "@/areas/create/inputs";
import { buttonClass, EmptyState, ErrorCard, Heading, Skeleton } from "@/kit";
import { useDroppedFiles } from "@/lib/file-drop";
import { studio } from "@/texts/studio";
import { EffectFacts } from "./EffectFacts";
import effectPageStyles from "./EffectPage.module.css";
import { EffectSettings } from "./EffectSettings";
import { Example } from "./Example";
import { InsufficientTokens } from "./InsufficientTokens";
import { balance, effect as effectQuery, type StudioEffect, useEffectOf } from "./queries";
import { StartButton } from "./StartButton";
import { StudioHeader } from "./StudioHeader";
import styles from "./studio.module.css";
import { UploadField } from "./UploadField";
import { usePrice } from "./use-price";
import { useStartEffect } from "./use-start-effect";
import { useUpload } from "./use-upload";

const texts = studio.effect;

export default function EffectPage() {
  const { slug } = useParams({ from: "/studio/effects/$slug" });
  const { data, error } = useQuery(effectQuery(slug));
  return (
    <>
      <StudioHeader title={data?.name ?? studio.title} />
      {data === null && (
        <EmptyState icon={FileQuestion} title={texts.gone} text={texts.goneText}>
          <Link to="/studio" className={buttonClass({})}>
            {texts.back}
          </Link>
        </EmptyState>
      )}
      {error && data === undefined && (
        <div className={styles.content}>
          <ErrorCard title={sentence(error)} />
        </div>
      )}
      {data === undefined && !error && (
        <div className={styles.content} role="status" aria-label={studio.loading}>
          <Skeleton height={380} />
        </div>
      )}
      {data && <Page key={data.slug} effect={data} />}
    </>
  );
}

/** Separate draft from Create. */
function studioChoice(effect: StudioEffect): Choice {
  const [found] = choicesOf([effect], [], null);
  return { ...(found as Choice), slug: `studio.${effect.slug}` };
}

function Page({ effect }: { effect: StudioEffect }) {
  const choice = useMemo(() => studioChoice(effect), [effect]);
  const form = useForm(choice);
  const primary = primaryOf(choice);
  const uploader = useUpload();
  // only the list has the last output
  const listed = useEffectOf({ effect_id: effect.id });
  const { data: wallet } = useQuery(balance);
  const price = usePrice(effect, form, uploader.upload?.id ?? null);
  const need = price ?? effect.credits_cost;
  const missingTokens = wallet ? Math.max(0, need - wallet.balance) : 0;
  const starting = useStartEffect(effect, form, uploader, price);

  const [wrong, setWrong] = useState<string | null>(null);
  const take = (files: readonly File[]) => {
    const [file] = files;
    if (!file || !primary || missingTokens) return;
    if (!acceptsMime(primary, typeOf(file))) return setWrong(texts.wrongType(file.name, primary.type));
    setWrong(null);
    uploader.start(file);
  };
  useDroppedFiles((files) => take(files.map((each) => each.file)));

  return (
    <div className={effectPageStyles.effectPage}>
      <div className={styles.main}>
        <Link to="/studio" className={styles.back}>
          <ArrowLeft aria-hidden />
          {texts.back}
        </Link>
        {effect.description && <p className={effectPageStyles.description}>{effect.description}</p>}
        {missingTokens > 0 && wallet && (
          <InsufficientTokens
            price={price}
            minimum={effect.credits_cost}
            have={wallet.balance}
            topUpUrl={wallet.topUpUrl}
          />
        )}
        {primary && (
          <section className={styles.part} aria-label={texts.yours[primary.type]}>
            <Heading>
              {texts.yours[primary.type]}
              {!primary.required && <span className={effectPageStyles.optional}>{texts.optional}</span>}
            </Heading>
            <UploadField
              type={primary.type}
              uploader={uploader}
              isDisabled={missingTokens > 0}
              problem={wrong ?? starting.fileProblem}
              onFiles={take}
            />
          </section>
        )}
        <EffectSettings form={form} isDisabled={missingTokens > 0} />
      </div>
      <aside className={styles.side} aria-label={texts.cost}>
        <div className={effectPageStyles.sideCover}>
          <Example effect={{ ...effect, cover_url: listed?.cover_url ?? null }} />
        </div>
        <EffectFacts effect={effect} price={price} balance={wallet?.balance} />
        {starting.problem && <ErrorCard title={starting.problem} />}
        <StartButton price={price} minimum={effect.credits_cost} starting={starting} isDisabled={missingTokens > 0} />
      </aside>
    </div>
  );
}
