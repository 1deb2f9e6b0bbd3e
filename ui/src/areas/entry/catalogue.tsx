import { useQuery } from "@tanstack/react-query";
import { Link, Navigate, useNavigate, useSearch } from "@tanstack/react-router";
import { sentence } from "@/api/problem";
import { entry, publicEffects } from "@/api/queries";
import { matching } from "@/areas/studio/categories";
import { EffectCards } from "@/areas/studio/EffectCards";
import { buttonClass, ErrorCard, Skeleton, Toasts } from "@/kit";
import { SearchField } from "@/kit/SearchField";
import { useDocumentTitle } from "@/lib/document-title";
import { BrandLogo } from "@/session/BrandLogo";
import { useBrand } from "@/session/brand";
import { LegalLinks } from "@/session/LegalLinks";
import { common } from "@/texts/common";
import { entry as texts } from "@/texts/entry";
import { studio } from "@/texts/studio";
import styles from "./catalogue.module.css";

/** Shows visitors the effects of a server with open sign-up. */
export default function Catalogue() {
  const { q = "" } = useSearch({ from: "/catalogue" });
  const { name } = useBrand();
  const { data, error } = useQuery(publicEffects);
  const { data: server } = useQuery(entry);
  useDocumentTitle("");
  if (data?.length === 0) return <Navigate to="/sign-in" replace />;
  const found = data && matching(data, q);
  return (
    <div className={styles.page}>
      <header className={styles.header}>
        <span className={styles.brand}>
          <BrandLogo size={32} />
          {name ?? common.name}
        </span>
        <nav className={styles.actions}>
          <Link to="/sign-in" className={buttonClass({})}>
            {texts.signIn.action}
          </Link>
          {server?.sign_up === "open" && (
            <Link to="/sign-up" className={buttonClass({ look: "primary" })}>
              {texts.signUp.title}
            </Link>
          )}
        </nav>
      </header>
      <main className={styles.main}>
        <div>
          <CatalogueSearch words={q} />
        </div>
        {error && !data && <ErrorCard title={sentence(error)} />}
        {!data && !error && <Skeleton height={380} />}
        {found && found.length > 0 && (
          <EffectCards
            effects={found}
            link={({ slug }, className, content) => (
              <Link to="/sign-up" search={{ to: `/studio/effects/${slug}` }} className={className}>
                {content}
              </Link>
            )}
          />
        )}
        {found?.length === 0 && <p>{studio.nothing}</p>}
      </main>
      <LegalLinks />
      <Toasts />
    </div>
  );
}

function CatalogueSearch({ words }: { words: string }) {
  const navigate = useNavigate({ from: "/catalogue" });
  return (
    <SearchField
      value={words}
      onChange={(next) => void navigate({ search: next ? { q: next } : {}, replace: true })}
      placeholder={studio.search}
    />
  );
}
