import { useInfiniteQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { CircleAlert, CircleCheck, Hourglass, RotateCcw, Webhook } from "lucide-react";
import { useState } from "react";
import { post } from "@/api/client";
import { sentence } from "@/api/problem";
import { Button, EmptyState, ErrorCard, FilterChip, Heading, Skeleton, toast, toastProblem } from "@/kit";
import { ago } from "@/texts/common";
import { wallet } from "@/texts/wallet";
import { type Delivery, type DeliveryStatus, deliveries } from "./queries";
import styles from "./wallet.module.css";

const texts = wallet.webhooks;

const STATUSES: readonly DeliveryStatus[] = ["pending", "delivered", "given_up"];

export function Deliveries() {
  const { status: asked } = useSearch({ from: "/wallet" });
  const navigate = useNavigate({ from: "/wallet" });
  const status = STATUSES.find((each) => each === asked);
  const { data, error, hasNextPage, fetchNextPage, isFetchingNextPage } = useInfiniteQuery(deliveries(status));
  const found = data?.pages.flatMap((each) => each.items);
  const show = (next: string | undefined) =>
    void navigate({ search: { tab: "webhooks", ...(next && { status: next }) }, replace: true });
  return (
    <>
      <Heading>{texts.deliveries}</Heading>
      <div className={styles.chips} role="group" aria-label={texts.filter}>
        <FilterChip isOn={!status} onClick={() => show(undefined)}>
          {texts.all}
        </FilterChip>
        {STATUSES.map((each) => (
          <FilterChip key={each} isOn={status === each} onClick={() => show(each)}>
            {texts.statuses[each]}
          </FilterChip>
        ))}
      </div>
      {error && !found && <ErrorCard title={sentence(error)} />}
      {!found && !error && <Skeleton height={120} />}
      {found?.length === 0 && (
        <EmptyState
          icon={Webhook}
          title={status ? texts.emptyFilter : texts.empty}
          {...(!status && { text: texts.emptyText })}
        />
      )}
      {found && found.length > 0 && (
        <ul className={styles.rows} aria-label={texts.deliveries}>
          {found.map((each) => (
            <DeliveryRow key={each.id} delivery={each} />
          ))}
        </ul>
      )}
      {hasNextPage && (
        <Button className={styles.more ?? ""} isBusy={isFetchingNextPage} onClick={() => void fetchNextPage()}>
          {wallet.more}
        </Button>
      )}
    </>
  );
}

const ICONS = { pending: Hourglass, delivered: CircleCheck, given_up: CircleAlert } as const;

function DeliveryRow({ delivery }: { delivery: Delivery }) {
  const client = useQueryClient();
  const [isBusy, setBusy] = useState(false);
  const { status } = delivery;
  const Icon = ICONS[status as keyof typeof ICONS] ?? Hourglass;
  const short = delivery.job_id.slice(-8);
  const again = async () => {
    setBusy(true);
    try {
      await post("/api/deliveries/{delivery_id}/redeliver", { path: { delivery_id: delivery.id } });
      toast({ text: texts.sentAgain, tone: "good" });
      await client.invalidateQueries({ queryKey: ["webhook", "deliveries"] });
    } catch (thrown) {
      toastProblem(thrown);
    }
    setBusy(false);
  };
  const facts = [
    texts.attempts(delivery.attempts),
    typeof delivery.last_status_code === "number" ? texts.answered(delivery.last_status_code) : delivery.last_error,
    status === "pending" && delivery.attempts > 0 && delivery.next_attempt_at
      ? texts.nextTry(ago(delivery.next_attempt_at))
      : null,
  ].filter(Boolean);
  return (
    <li className={styles.row} data-status={status}>
      <span className={styles.icon}>
        <Icon aria-hidden />
      </span>
      <span className={styles.what}>
        <strong>
          {texts.statuses[status] ?? status} ·{" "}
          <Link to="/studio/videos/$id" params={{ id: delivery.job_id }}>
            {texts.job(short)}
          </Link>
        </strong>
        <span className={styles.url}>{delivery.url}</span>
        <span>{facts.join(" · ")}</span>
      </span>
      <time className={styles.when} dateTime={delivery.created_at}>
        {ago(delivery.created_at)}
      </time>
      <Button
        size="small"
        icon={RotateCcw}
        isBusy={isBusy}
        aria-label={texts.redeliverOf(short)}
        onClick={() => void again()}
      >
        {texts.redeliver}
      </Button>
    </li>
  );
}
