import { useQuery } from "@tanstack/react-query";
import { sentence } from "@/api/problem";
import { ErrorCard, Skeleton } from "@/kit";
import { wallet } from "@/texts/wallet";
import { Deliveries } from "./Deliveries";
import { webhook } from "./queries";
import { WebhookForm } from "./WebhookForm";
import styles from "./wallet.module.css";

const texts = wallet.webhooks;

export function Webhooks() {
  const { data, error } = useQuery(webhook);
  return (
    <div className={styles.column}>
      <p className={styles.quiet}>{texts.about}</p>
      {error && !data && <ErrorCard title={sentence(error)} />}
      {!data && !error && <Skeleton height={120} />}
      {data && <WebhookForm url={data.url ?? null} hasSecret={data.has_secret} />}
      <Deliveries />
    </div>
  );
}
