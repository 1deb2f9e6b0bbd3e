import { useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { type FormEvent, useEffect, useState } from "react";
import { post } from "@/api/client";
import { Problem, sentence } from "@/api/problem";
import { entry as entryQuery } from "@/api/queries";
import { Button, ErrorCard, Field, TextField } from "@/kit";
import { useFragment } from "@/lib/use-fragment";
import { PasswordField } from "@/session/PasswordField";
import { entry as entryTexts } from "@/texts/entry";
import { setup as texts } from "@/texts/setup";
import styles from "./step.module.css";

/** Creates the administrator. It needs the code that the server printed when it started. */
export function AdministratorStep() {
  const client = useQueryClient();
  const linked = useFragment();
  const [code, setCode] = useState(linked);
  // a link that was opened in this tab
  useEffect(() => {
    if (linked) setCode(linked);
  }, [linked]);
  const [email, setEmail] = useState("");
  const [password, setPassword] = useState("");
  const [problem, setProblem] = useState<Problem | null>(null);
  const [isSending, setSending] = useState(false);
  const send = async (event: FormEvent) => {
    event.preventDefault();
    setSending(true);
    setProblem(null);
    try {
      await post("/api/setup", { body: { code, email, password } });
      // the code is used up, so remove it from the URL
      history.replaceState(history.state, "", location.pathname);
      await client.invalidateQueries({ queryKey: entryQuery.queryKey });
    } catch (thrown) {
      setProblem(thrown instanceof Problem ? thrown : new Problem(sentence(thrown), 0));
      setSending(false);
    }
  };
  const errors = problem?.errors ?? {};
  const isFieldError = Boolean(errors.code || errors.email || errors.password);
  return (
    <form className={styles.form} onSubmit={(event) => void send(event)}>
      <p>{texts.admin.about}</p>
      {problem && !isFieldError && <ErrorCard title={problem.message} />}
      <Field name={texts.admin.code} hint={texts.admin.codeHint} problem={errors.code}>
        <TextField
          name="code"
          autoComplete="off"
          spellCheck={false}
          required
          autoFocus={!code}
          className={styles.code ?? ""}
          value={code}
          onChange={(event) => setCode(event.target.value)}
        />
      </Field>
      <Field name={entryTexts.email} problem={errors.email}>
        <TextField
          type="email"
          name="email"
          autoComplete="username"
          required
          autoFocus={Boolean(code)}
          value={email}
          onChange={(event) => setEmail(event.target.value)}
        />
      </Field>
      <Field name={entryTexts.password} hint={entryTexts.passwordHint} problem={errors.password}>
        <PasswordField value={password} onChange={setPassword} autoComplete="new-password" />
      </Field>
      <div className={styles.actions}>
        <Button look="primary" type="submit" isBusy={isSending}>
          {texts.admin.action}
        </Button>
      </div>
      <p className={styles.hint}>
        {texts.admin.haveAccount} <Link to="/sign-in">{entryTexts.signIn.title}</Link>
      </p>
    </form>
  );
}
