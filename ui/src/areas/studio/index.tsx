import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { SearchX, Sparkles } from "lucide-react";
import { sentence } from "@/api/problem";
import { effects } from "@/api/queries";
import { Button, EmptyState, ErrorCard, Skeleton } from "@/kit";
import { kindOf } from "@/kit/Media";
import { SearchField } from "@/kit/SearchField";
import { common } from "@/texts/common";
import { studio as texts } from "@/texts/studio";
import { Cover, KIND_ICONS } from "./Cover";
import styles from "./cards.module.css";
import type { StudioEffect } from "./queries";
import { StudioHeader } from "./StudioHeader";
import studioStyles from "./studio.module.css";

export default function Studio() {
  const { q = "" } = useSearch({ from: "/studio" });
  const navigate = useNavigate({ from: "/studio" });
  const { data, error, refetch } = useQuery(effects);
  const words = q.toLowerCase().split(/\s+/).filter(Boolean);
  const found = data?.filter((each) => words.every((word) => each.name.toLowerCase().includes(word)));
  const setQuery = (next: string) => void navigate({ search: next ? { q: next } : {}, replace: true });
  return (
    <>
      <StudioHeader
        title={texts.title}
        search={<SearchField value={q} onChange={setQuery} placeholder={texts.search} />}
      />
      <div className={studioStyles.content}>
        {error && !data && (
          <ErrorCard
            title={sentence(error)}
            actions={
              <Button size="small" onClick={() => void refetch()}>
                {common.retry}
              </Button>
            }
          />
        )}
        {!found && !error && <Loading />}
        {found && found.length > 0 && (
          <ul className={styles.effects} aria-label={texts.effects}>
            {found.map((each) => (
              <li key={each.id}>
                <EffectCard effect={each} />
              </li>
            ))}
          </ul>
        )}
        {found?.length === 0 &&
          (words.length ? (
            <EmptyState icon={SearchX} title={texts.nothing} text={texts.nothingText}>
              <Button onClick={() => setQuery("")}>{texts.clear}</Button>
            </EmptyState>
          ) : (
            <EmptyState icon={Sparkles} title={texts.empty} text={texts.emptyText} />
          ))}
      </div>
    </>
  );
}

const LOADING = ["a", "b", "c", "d", "e", "f", "g", "h"];

function Loading() {
  return (
    <div className={styles.effects} role="status" aria-label={texts.loading}>
      {LOADING.map((each) => (
        <Skeleton key={each} height={230} />
      ))}
    </div>
  );
}

function EffectCard({ effect }: { effect: StudioEffect }) {
  const kind = kindOf(effect.output_mime_type);
  const Icon = KIND_ICONS[kind];
  const seconds = effect.last_processing_time_seconds;
  return (
    <Link to="/studio/effects/$slug" params={{ slug: effect.slug }} className={styles.card}>
      <span className={styles.cover}>
        <Cover effect={effect} />
        <span className={styles.price}>
          {effect.max_credits_cost == null ? texts.cost(effect.credits_cost) : texts.costFrom(effect.credits_cost)}
        </span>
      </span>
      <span className={styles.cardText}>
        <strong>{effect.name}</strong>
        <span>
          <Icon aria-hidden />
          {texts.makes[kind]}
          {typeof seconds === "number" && ` · ${texts.takes(seconds)}`}
        </span>
      </span>
    </Link>
  );
}
