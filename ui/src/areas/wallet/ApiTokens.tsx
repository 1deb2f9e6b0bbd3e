import { useInfiniteQuery, useQueryClient } from "@tanstack/react-query";
import { KeyRound, MonitorSmartphone, Plus } from "lucide-react";
import { type FormEvent, useState } from "react";
import { post, remove } from "@/api/client";
import { Problem, sentence } from "@/api/problem";
import {
  Button,
  Chip,
  Dialog,
  EmptyState,
  ErrorCard,
  Field,
  Heading,
  Select,
  Skeleton,
  TextField,
  toast,
  toastProblem,
} from "@/kit";
import { CopyField } from "@/kit/CopyField";
import { ago, common } from "@/texts/common";
import { wallet } from "@/texts/wallet";
import { type Token, tokens } from "./queries";
import styles from "./wallet.module.css";

const texts = wallet.api;
const day = new Intl.DateTimeFormat("en", { dateStyle: "medium" });

export function ApiTokens() {
  const client = useQueryClient();
  const { data, error, hasNextPage, fetchNextPage, isFetchingNextPage } = useInfiniteQuery(tokens);
  const [isMaking, setMaking] = useState(false);
  const [secret, setSecret] = useState<string | null>(null);
  const [leaving, setLeaving] = useState<Token | null>(null);
  const all = data?.pages.flatMap((each) => each.items);
  const own = all?.filter((each) => !each.is_session);
  const sessions = all?.filter((each) => each.is_session) ?? [];
  const fresh = () => client.invalidateQueries({ queryKey: tokens.queryKey });
  return (
    <div className={styles.column}>
      <div className={styles.head}>
        <p className={styles.quiet}>{texts.about}</p>
        <Button look="primary" icon={Plus} onClick={() => setMaking(true)}>
          {texts.make}
        </Button>
      </div>
      <Heading>{texts.list}</Heading>
      {error && !all && <ErrorCard title={sentence(error)} />}
      {!all && !error && <Skeleton height={140} />}
      {own?.length === 0 && <EmptyState icon={KeyRound} title={texts.empty} text={texts.emptyText} />}
      {own && own.length > 0 && (
        <ul className={styles.rows} aria-label={texts.list}>
          {own.map((each) => (
            <TokenRow key={each.id} token={each} onLeave={setLeaving} />
          ))}
        </ul>
      )}
      {sessions.length > 0 && (
        <>
          <Heading>{texts.sessions}</Heading>
          <ul className={styles.rows} aria-label={texts.sessions}>
            {sessions.map((each) => (
              <TokenRow key={each.id} token={each} onLeave={setLeaving} />
            ))}
          </ul>
        </>
      )}
      {hasNextPage && (
        <Button className={styles.more ?? ""} isBusy={isFetchingNextPage} onClick={() => void fetchNextPage()}>
          {wallet.more}
        </Button>
      )}
      {isMaking && (
        <NewTokenDialog
          onClose={() => setMaking(false)}
          onMade={(made) => {
            setMaking(false);
            setSecret(made);
            void fresh();
          }}
        />
      )}
      <Dialog
        isOpen={secret !== null}
        isFirm
        title={texts.shownOnce}
        about={texts.shownOnceText}
        actions={
          <Button look="primary" onClick={() => setSecret(null)}>
            {texts.done}
          </Button>
        }
      >
        <CopyField name={texts.token} value={secret ?? ""} />
      </Dialog>
      {leaving && <RevokeDialog token={leaving} onClose={() => setLeaving(null)} onDone={() => void fresh()} />}
    </div>
  );
}

function TokenRow({ token, onLeave }: { token: Token; onLeave: (token: Token) => void }) {
  const Icon = token.is_session ? MonitorSmartphone : KeyRound;
  const until = token.expires_at ? texts.expires(day.format(new Date(token.expires_at))) : texts.forEver;
  const name = token.is_session ? texts.session : token.name;
  return (
    <li className={styles.row}>
      <span className={styles.icon}>
        <Icon aria-hidden />
      </span>
      <span className={styles.what}>
        <strong>
          {name} {token.is_current && <Chip>{texts.thisOne}</Chip>}
        </strong>
        <span>
          {texts.made(ago(token.created_at))} · {until}
        </span>
      </span>
      {!token.is_current && (
        <Button
          size="small"
          aria-label={token.is_session ? texts.signOutName(ago(token.created_at)) : texts.revokeName(name)}
          onClick={() => onLeave(token)}
        >
          {token.is_session ? texts.signOut : texts.revoke}
        </Button>
      )}
    </li>
  );
}

function NewTokenDialog({ onClose, onMade }: { onClose: () => void; onMade: (secret: string) => void }) {
  const [name, setName] = useState("");
  const [days, setDays] = useState("90");
  const [problem, setProblem] = useState<string | null>(null);
  const [isBusy, setBusy] = useState(false);
  const make = async (event: FormEvent) => {
    event.preventDefault();
    if (!name.trim()) return setProblem(texts.needsName);
    setBusy(true);
    try {
      const lifetime = days === "never" ? null : Number(days);
      const { data } = await post("/api/tokens", { body: { name: name.trim(), expires_in_days: lifetime } });
      onMade(data.token);
    } catch (thrown) {
      setProblem(thrown instanceof Problem ? (thrown.errors.name ?? thrown.message) : sentence(thrown));
      setBusy(false);
    }
  };
  return (
    <Dialog
      isOpen
      onClose={onClose}
      title={texts.make}
      actions={
        <>
          <Button onClick={onClose}>{common.cancel}</Button>
          <Button look="primary" type="submit" form="new-token" isBusy={isBusy}>
            {texts.make}
          </Button>
        </>
      }
    >
      <form id="new-token" className={styles.form} onSubmit={(event) => void make(event)} noValidate>
        <Field name={texts.name} problem={problem} isRequired>
          <TextField
            value={name}
            maxLength={200}
            placeholder={texts.namePlaceholder}
            onChange={(event) => {
              setName(event.target.value);
              setProblem(null);
            }}
          />
        </Field>
        <Field name={texts.lifetime}>
          <Select value={days} choices={texts.lifetimes} onChange={setDays} />
        </Field>
      </form>
    </Dialog>
  );
}

function RevokeDialog({ token, onClose, onDone }: { token: Token; onClose: () => void; onDone: () => void }) {
  const [isBusy, setBusy] = useState(false);
  const leave = async () => {
    setBusy(true);
    try {
      await remove("/api/tokens/{token_id}", { path: { token_id: token.id } });
      toast({ text: token.is_session ? texts.signedOut : texts.revoked(token.name), tone: "good" });
      onDone();
    } catch (thrown) {
      toastProblem(thrown);
    }
    onClose();
  };
  return (
    <Dialog
      isOpen
      onClose={onClose}
      title={token.is_session ? texts.signOutTitle : texts.revokeTitle(token.name)}
      about={token.is_session ? texts.signOutText : texts.revokeText}
      actions={
        <>
          <Button onClick={onClose}>{common.cancel}</Button>
          <Button look="danger" isBusy={isBusy} onClick={() => void leave()}>
            {token.is_session ? texts.signOut : texts.revoke}
          </Button>
        </>
      }
    />
  );
}
