import { useQuery } from "@tanstack/react-query";
import { Link, useSearch } from "@tanstack/react-router";
import { type FormEvent, useState } from "react";
import { post } from "@/api/client";
import { Problem, sentence } from "@/api/problem";
import { entry } from "@/api/queries";
import { Button, ErrorCard, Field, TextField } from "@/kit";
import { PasswordField } from "@/session/PasswordField";
import { localPath } from "@/session/sign-in-guard";
import { entry as texts } from "@/texts/entry";
import styles from "./entry.module.css";
import { Frame } from "./Frame";

export default function SignUp() {
  const { to } = useSearch({ from: "/sign-up" });
  const { data: found } = useQuery(entry);
  const isClosed = found?.can_sign_up === false;
  return (
    <Frame
      title={isClosed ? texts.signUp.closed : texts.signUp.title}
      foot={
        <p>
          {texts.signUp.toSignIn}{" "}
          <Link to="/sign-in" search={to ? { to } : {}}>
            {texts.signIn.title}
          </Link>
        </p>
      }
    >
      {isClosed ? <p>{texts.signUp.closedAdvice}</p> : <SignUpForm to={to} />}
    </Frame>
  );
}

function SignUpForm({ to }: { to: string | undefined }) {
  const [email, setEmail] = useState("");
  const [name, setName] = useState("");
  const [password, setPassword] = useState("");
  const [problem, setProblem] = useState<Problem | null>(null);
  const [isSending, setSending] = useState(false);
  const send = async (event: FormEvent) => {
    event.preventDefault();
    setSending(true);
    setProblem(null);
    try {
      await post("/api/register", { body: { email, password, name: name || null } });
      location.replace(localPath(to));
    } catch (thrown) {
      setProblem(thrown instanceof Problem ? thrown : new Problem(sentence(thrown), 0));
      setSending(false);
    }
  };
  const errors = problem?.errors ?? {};
  const isFieldError = Boolean(errors.email || errors.password || errors.name);
  return (
    <form className={styles.form} onSubmit={(event) => void send(event)}>
      {problem && !isFieldError && <ErrorCard title={problem.message} />}
      <Field name={texts.email} problem={errors.email}>
        <TextField
          type="email"
          name="email"
          autoComplete="username"
          required
          autoFocus
          value={email}
          onChange={(event) => setEmail(event.target.value)}
        />
      </Field>
      <Field name={texts.name} hint={texts.nameHint} problem={errors.name}>
        <TextField
          name="name"
          autoComplete="name"
          maxLength={200}
          value={name}
          onChange={(event) => setName(event.target.value)}
        />
      </Field>
      <Field name={texts.password} hint={texts.passwordHint} problem={errors.password}>
        <PasswordField value={password} onChange={setPassword} autoComplete="new-password" />
      </Field>
      <Button look="primary" type="submit" isBusy={isSending}>
        {texts.signUp.action}
      </Button>
    </form>
  );
}
