// Layout of the catalogue, tenant and operations pages.

import { Link } from "@tanstack/react-router";
import { ChevronLeft, Copy } from "lucide-react";
import type { ComponentProps, ReactNode } from "react";
import { sentence } from "@/api/problem";
import { Button, classes, ErrorCard, IconButton, Skeleton } from "@/kit";
import { copyText } from "@/kit/clipboard";
import { ago, common } from "@/texts/common";
import { shared } from "@/texts/console-shared";
import styles from "./parts.module.css";
import sheetStyles from "./sheet.module.css";

export { sheetStyles as sheet };

export const Sheet = ({ isNarrow, children }: { isNarrow?: boolean; children: ReactNode }) => (
  <div className={classes(sheetStyles.sheet, isNarrow && sheetStyles.narrow)}>{children}</div>
);

interface SectionProps extends Omit<ComponentProps<"section">, "title" | "about"> {
  title: string;
  about?: ReactNode;
  /** At the end of the heading line. */
  aside?: ReactNode;
}

export const Section = ({ title, about, aside, children, className, ...rest }: SectionProps) => (
  <section {...rest} aria-label={title} className={classes(styles.section, className)}>
    <div className={styles.sectionHead}>
      <h2>{title}</h2>
      {aside}
    </div>
    {about && <p className={sheetStyles.about}>{about}</p>}
    {children}
  </section>
);

export const Facts = ({ facts }: { facts: readonly (readonly [string, ReactNode])[] }) => (
  <dl className={styles.facts}>
    {facts.map(([name, value]) => (
      <div key={name} style={{ display: "contents" }}>
        <dt>{name}</dt>
        <dd>{value}</dd>
      </div>
    ))}
  </dl>
);

export type Tone = "good" | "bad" | "warn" | "busy" | "idle";

export const State = ({ tone, children }: { tone: Tone; children: ReactNode }) => (
  <span className={styles.state} data-tone={tone}>
    {children}
  </span>
);

export const RelativeTime = ({ at }: { at: string | null | undefined }) =>
  at ? (
    <time dateTime={at} title={shared.moment(at)}>
      {ago(at)}
    </time>
  ) : (
    <span>{shared.never}</span>
  );

/** A secret that is shown once. */
export const Secret = ({ text }: { text: string }) => (
  <div className={styles.secret}>
    <code>{text}</code>
    <IconButton icon={Copy} name={common.copy} size="small" onClick={() => void copyText(text)} />
  </div>
);

interface QueryResultProps<T> {
  query: { data: T | undefined; error: Error | null; refetch: () => unknown };
  children: (data: T) => ReactNode;
}

/** The data of a query, its error or a placeholder. */
export function QueryResult<T>({ query, children }: QueryResultProps<T>) {
  if (query.data !== undefined) return <>{children(query.data)}</>;
  if (query.error) {
    return (
      <ErrorCard
        title={sentence(query.error)}
        actions={<Button onClick={() => void query.refetch()}>{shared.again}</Button>}
      />
    );
  }
  return (
    <div role="status" aria-label={common.loading} className={sheetStyles.form}>
      <Skeleton height={40} />
      <Skeleton height={40} />
      <Skeleton height={40} />
    </div>
  );
}

interface MorePagesProps {
  query: { hasNextPage: boolean; isFetchingNextPage: boolean; fetchNextPage: () => unknown };
}

export const MorePages = ({ query }: MorePagesProps) =>
  query.hasNextPage ? (
    <div className={styles.more}>
      <Button isBusy={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>
        {shared.more}
      </Button>
    </div>
  ) : null;

type Parent = "/console/workflows" | "/console/effects" | "/console/tenants";

export const BackTo = ({ to, name }: { to: Parent; name: string }) => (
  <Link to={to} className={styles.backLink}>
    <ChevronLeft aria-hidden />
    {name}
  </Link>
);
