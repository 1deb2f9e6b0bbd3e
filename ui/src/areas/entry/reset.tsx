import { useQuery } from "@tanstack/react-query";
import { Link, useSearch } from "@tanstack/react-router";
import { type FormEvent, useState } from "react";
import { post } from "@/api/client";
import { Problem, sentence } from "@/api/problem";
import type { components } from "@/api/schema";
import { Button, buttonClass, ErrorCard, Field, Skeleton, TextField } from "@/kit";
import { useFragment } from "@/lib/use-fragment";
import { PasswordField } from "@/session/PasswordField";
import { localPath } from "@/session/sign-in-guard";
import { common } from "@/texts/common";
import { entry as texts } from "@/texts/entry";
import styles from "./entry.module.css";
import { Frame } from "./Frame";

const { reset } = texts;

type Account = components["schemas"]["ResetAccount"];

export default function Reset() {
  const token = useFragment();
  const { data, error, isFetching, refetch } = useQuery({
    queryKey: ["reset", token] as const,
    queryFn: async () => (await post("/api/reset/check", { body: { token } })).data,
    enabled: token !== "",
    retry: false,
    // no refetch: it would discard the typed password
    staleTime: Number.POSITIVE_INFINITY,
  });
  const isRefused = error instanceof Problem && [403, 404, 422].includes(error.status);
  if (!token || isRefused) {
    return (
      <Frame title={reset.gone}>
        <p>{error ? sentence(error) : reset.goneAdvice}</p>
        <Link to="/sign-in" className={buttonClass({ look: "primary" })}>
          {reset.toSignIn}
        </Link>
      </Frame>
    );
  }
  if (error && !data) {
    // the link may still work: the check failed, not the token
    return (
      <Frame title={reset.title}>
        <ErrorCard
          title={sentence(error)}
          actions={
            <Button isBusy={isFetching} onClick={() => void refetch()}>
              {common.retry}
            </Button>
          }
        />
      </Frame>
    );
  }
  return (
    <Frame title={reset.title}>{data ? <NewPassword key={token} token={token} account={data} /> : <Skeleton />}</Frame>
  );
}

function NewPassword({ token, account }: { token: string; account: Account }) {
  const { to } = useSearch({ from: "/reset" });
  const [password, setPassword] = useState("");
  const [problem, setProblem] = useState<Problem | null>(null);
  const [isSending, setSending] = useState(false);
  const send = async (event: FormEvent) => {
    event.preventDefault();
    setSending(true);
    setProblem(null);
    try {
      await post("/api/reset", { body: { token, password } });
      location.replace(localPath(to));
    } catch (thrown) {
      setProblem(thrown instanceof Problem ? thrown : new Problem(sentence(thrown), 0));
      setSending(false);
    }
  };
  const passwordProblem = problem?.errors.password;
  return (
    <form className={styles.form} onSubmit={(event) => void send(event)}>
      {problem && !passwordProblem && <ErrorCard title={problem.message} />}
      <Field name={texts.email}>
        <TextField type="email" name="email" autoComplete="username" readOnly value={account.email} />
      </Field>
      <Field name={texts.newPassword} hint={texts.passwordHint} problem={passwordProblem}>
        <PasswordField value={password} onChange={setPassword} autoFocus autoComplete="new-password" />
      </Field>
      <Button look="primary" type="submit" isBusy={isSending}>
        {reset.action}
      </Button>
      {!account.is_new && (
        <p className={styles.hint}>{account.has_webhook ? `${reset.about} ${reset.webhook}` : reset.about}</p>
      )}
    </form>
  );
}
