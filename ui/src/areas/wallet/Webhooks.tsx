import { useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { CircleAlert, CircleCheck, Hourglass, KeyRound, RotateCcw, Send, Trash2, Webhook } from "lucide-react";
import { type FormEvent, useEffect, useState } from "react";
import { post, put, remove } from "@/api/client";
import { Problem, sentence } from "@/api/problem";
import {
  Button,
  Dialog,
  EmptyState,
  ErrorCard,
  Field,
  FilterChip,
  Heading,
  Skeleton,
  TextField,
  toast,
  toastProblem,
} from "@/kit";
import { CopyField } from "@/kit/CopyField";
import { ago, common } from "@/texts/common";
import { wallet } from "@/texts/wallet";
import { type Delivery, deliveries, webhook } from "./data";
import styles from "./wallet.module.css";

const texts = wallet.webhooks;
const STATUSES = ["pending", "delivered", "given_up"];

export function Webhooks() {
  const { data, error } = useQuery(webhook);
  return (
    <div className={styles.column}>
      <p className={styles.quiet}>{texts.about}</p>
      {error && !data && <ErrorCard title={sentence(error)} />}
      {!data && !error && <Skeleton height={120} />}
      {data && <Endpoint url={data.url ?? null} hasSecret={data.has_secret} />}
      <Deliveries />
    </div>
  );
}

interface Tried {
  isDelivered: boolean;
  status: number | null;
  error: string | null;
}

function Endpoint({ url: saved, hasSecret }: { url: string | null; hasSecret: boolean }) {
  const client = useQueryClient();
  const [url, setUrl] = useState(saved ?? "");
  const [problem, setProblem] = useState<string | null>(null);
  const [busy, setBusy] = useState<"save" | "test" | "remove" | null>(null);
  const [asked, setAsked] = useState<"rotate" | "remove" | null>(null);
  const [secret, setSecret] = useState<string | null>(null);
  const [tried, setTried] = useState<Tried | null>(null);
  useEffect(() => setUrl(saved ?? ""), [saved]);
  const fresh = () => client.invalidateQueries({ queryKey: webhook.queryKey });

  const save = async (isNewSecret: boolean) => {
    setBusy("save");
    setProblem(null);
    setTried(null);
    try {
      const { data } = await put("/api/webhook", {
        body: { url: isNewSecret ? saved : url.trim(), rotate_secret: isNewSecret },
      });
      if (data.secret) setSecret(data.secret);
      else toast({ text: texts.saved, tone: "good" });
      await fresh();
    } catch (thrown) {
      setProblem(thrown instanceof Problem ? (thrown.errors.url ?? thrown.message) : sentence(thrown));
    }
    setBusy(null);
    setAsked(null);
  };
  const test = async () => {
    setBusy("test");
    setTried(null);
    try {
      const { data } = await post("/api/webhook/test");
      setTried({ isDelivered: data.is_delivered, status: data.status_code ?? null, error: data.error ?? null });
    } catch (thrown) {
      toastProblem(thrown);
    }
    setBusy(null);
  };
  const drop = async () => {
    setBusy("remove");
    try {
      await remove("/api/webhook");
      toast({ text: texts.removed, tone: "good" });
      setTried(null);
      await fresh();
    } catch (thrown) {
      toastProblem(thrown);
    }
    setBusy(null);
    setAsked(null);
  };
  const submit = (event: FormEvent) => {
    event.preventDefault();
    void save(false);
  };
  const isSame = url.trim() === (saved ?? "");
  return (
    <>
      <form className={styles.endpoint} onSubmit={submit} noValidate>
        <Field name={texts.url} hint={texts.urlHint} problem={problem}>
          <TextField
            type="url"
            inputMode="url"
            value={url}
            spellCheck={false}
            placeholder={texts.placeholder}
            onChange={(event) => {
              setUrl(event.target.value);
              setProblem(null);
            }}
          />
        </Field>
        <div className={styles.actions}>
          <Button look="primary" type="submit" isBusy={busy === "save"} disabled={isSame || !url.trim()}>
            {saved ? texts.save : texts.add}
          </Button>
          {saved && (
            <Button icon={Send} isBusy={busy === "test"} disabled={!isSame} onClick={() => void test()}>
              {texts.test}
            </Button>
          )}
          {saved && hasSecret && (
            <Button icon={KeyRound} onClick={() => setAsked("rotate")}>
              {texts.rotate}
            </Button>
          )}
          {saved && (
            <Button icon={Trash2} look="quiet" onClick={() => setAsked("remove")}>
              {texts.remove}
            </Button>
          )}
        </div>
        <div role="status">
          {tried?.isDelivered && (
            <p className={styles.tried} data-tone="good">
              <CircleCheck aria-hidden />
              {texts.arrived(tried.status ?? 200)}
            </p>
          )}
          {tried && !tried.isDelivered && (
            <p className={styles.tried} data-tone="bad">
              <CircleAlert aria-hidden />
              <span>
                {texts.notArrived}. {tried.error}
              </span>
            </p>
          )}
        </div>
      </form>
      <Dialog
        isOpen={asked !== null}
        onClose={() => setAsked(null)}
        title={asked === "remove" ? texts.removeTitle : texts.rotateTitle}
        about={asked === "remove" ? texts.removeText : texts.rotateText}
        actions={
          <>
            <Button onClick={() => setAsked(null)}>{common.cancel}</Button>
            {asked === "remove" ? (
              <Button look="danger" isBusy={busy === "remove"} onClick={() => void drop()}>
                {texts.remove}
              </Button>
            ) : (
              <Button look="primary" isBusy={busy === "save"} onClick={() => void save(true)}>
                {texts.rotate}
              </Button>
            )}
          </>
        }
      />
      <Dialog
        isOpen={secret !== null}
        isFirm
        title={texts.secretTitle}
        about={texts.secretText}
        actions={
          <Button look="primary" onClick={() => setSecret(null)}>
            {texts.done}
          </Button>
        }
      >
        <CopyField name={texts.secret} value={secret ?? ""} />
      </Dialog>
    </>
  );
}

function Deliveries() {
  const { status: asked } = useSearch({ from: "/wallet" });
  const navigate = useNavigate({ from: "/wallet" });
  const status = asked && STATUSES.includes(asked) ? asked : undefined;
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
