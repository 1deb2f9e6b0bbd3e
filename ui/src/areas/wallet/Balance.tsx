import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { ArrowDownLeft, Check, Coins, Hourglass, type LucideIcon, RotateCcw, Scale, Wallet } from "lucide-react";
import { sentence } from "@/api/problem";
import { balance } from "@/areas/studio/queries";
import { Button, buttonClass, EmptyState, ErrorCard, Heading, Skeleton } from "@/kit";
import { ago } from "@/texts/common";
import { wallet as texts } from "@/texts/wallet";
import { type LedgerLine, ledgerLines, transactions } from "./queries";
import styles from "./wallet.module.css";

const ICONS: Readonly<Record<string, LucideIcon>> = {
  PAYMENT_CREDIT: ArrowDownLeft,
  JOB_RESERVE: Hourglass,
  JOB_CONSUME: Check,
  JOB_REFUND: RotateCcw,
  JOB_CREDIT: RotateCcw,
};

export function Balance() {
  const { data: wallet } = useQuery(balance);
  const { data, error, hasNextPage, fetchNextPage, isFetchingNextPage } = useInfiniteQuery(transactions);
  const lines = data && ledgerLines(data.pages.flatMap((each) => each.items));
  return (
    <div className={styles.column}>
      <section className={styles.purse} aria-label={texts.balance}>
        <Coins aria-hidden strokeWidth={1.5} />
        <div>
          <span className={styles.label}>{texts.balance}</span>
          {wallet ? (
            <p className={styles.amount}>
              <strong>{texts.count(wallet.balance)}</strong> {texts.unit(wallet.balance)}
            </p>
          ) : (
            <Skeleton width={140} height={40} />
          )}
          <p className={styles.quiet}>{texts.about}</p>
        </div>
        {wallet && (
          <div className={styles.topUp}>
            {wallet.topUpUrl ? (
              <>
                <a className={buttonClass({ look: "primary" })} href={wallet.topUpUrl} target="_blank" rel="noreferrer">
                  {texts.topUp}
                </a>
                <p className={styles.quiet}>{texts.topUpText}</p>
              </>
            ) : (
              <p className={styles.quiet}>{texts.askAdministrator}</p>
            )}
          </div>
        )}
      </section>
      <Heading>{texts.transactions}</Heading>
      {error && !lines && <ErrorCard title={sentence(error)} />}
      {!lines && !error && <Skeleton height={200} />}
      {lines?.length === 0 && <EmptyState icon={Wallet} title={texts.empty} text={texts.emptyText} />}
      {lines && lines.length > 0 && (
        <ul className={styles.rows} aria-label={texts.transactions}>
          {lines.map((each) => (
            <Row key={each.transaction.id} line={each} />
          ))}
        </ul>
      )}
      {hasNextPage && (
        <Button className={styles.more ?? ""} isBusy={isFetchingNextPage} onClick={() => void fetchNextPage()}>
          {texts.more}
        </Button>
      )}
    </div>
  );
}

function Row({ line: { transaction, type } }: { line: LedgerLine }) {
  const Icon = ICONS[type] ?? Scale;
  const { job_id: jobId, job_label: label, description, amount } = transaction;
  return (
    <li className={styles.row} data-type={type}>
      <span className={styles.icon}>
        <Icon aria-hidden />
      </span>
      <span className={styles.what}>
        <strong>{texts.types[type] ?? type}</strong>
        {jobId && label ? (
          <Link to="/studio/videos/$id" params={{ id: jobId }}>
            {label}
          </Link>
        ) : (
          <span>{description ?? (jobId ? texts.deleted : "")}</span>
        )}
      </span>
      <time className={styles.when} dateTime={transaction.created_at} title={transaction.created_at}>
        {ago(transaction.created_at)}
      </time>
      <span className={styles.sum} data-plus={amount > 0 || undefined}>
        {texts.amount(amount)}
      </span>
    </li>
  );
}
