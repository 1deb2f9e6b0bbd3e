import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { SearchX, Sparkles } from "lucide-react";
import { sentence } from "@/api/problem";
import { effects } from "@/api/queries";
import { Button, EmptyState, ErrorCard, Skeleton } from "@/kit";
import { SearchField } from "@/kit/SearchField";
import { LegalLinks } from "@/session/LegalLinks";
import { common } from "@/texts/common";
import { studio as texts } from "@/texts/studio";
import styles from "./cards.module.css";
import { matching } from "./categories";
import { EffectCards } from "./EffectCards";
import { StudioHeader } from "./StudioHeader";
import studioStyles from "./studio.module.css";

export default function Studio() {
  const { q = "" } = useSearch({ from: "/studio" });
  const navigate = useNavigate({ from: "/studio" });
  const { data, error, refetch } = useQuery(effects);
  const found = data && matching(data, q);
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
          <EffectCards
            effects={found}
            link={({ slug }, className, content) => (
              <Link to="/studio/effects/$slug" params={{ slug }} className={className}>
                {content}
              </Link>
            )}
          />
        )}
        {found?.length === 0 &&
          (q.trim() ? (
            <EmptyState icon={SearchX} title={texts.nothing} text={texts.nothingText}>
              <Button onClick={() => setQuery("")}>{texts.clear}</Button>
            </EmptyState>
          ) : (
            <EmptyState icon={Sparkles} title={texts.empty} text={texts.emptyText} />
          ))}
        <LegalLinks />
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
