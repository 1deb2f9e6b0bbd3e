import { useQuery } from "@tanstack/react-query";
import { Link, useSearch } from "@tanstack/react-router";
import { type FormEvent, useState } from "react";
import { post } from "@/api/client";
import { Problem, sentence } from "@/api/problem";
import { entry } from "@/api/queries";
import { Button, ErrorCard, Field, TextField } from "@/kit";
import { useBrand } from "@/session/brand";
import { PasswordField } from "@/session/PasswordField";
import { localPath } from "@/session/sign-in-guard";
import { entry as texts } from "@/texts/entry";
import styles from "./entry.module.css";
import { Frame } from "./Frame";

export default function SignUp() {
  const { to } = useSearch({ from: "/sign-up" });
  const { data: found } = useQuery(entry);
  const [sentTo, setSentTo] = useState("");
  const { title, advice } =
    found?.sign_up === "invitation"
      ? { title: texts.signUp.invitation, advice: texts.signUp.invitationAdvice }
      : found?.sign_up === "closed"
        ? { title: texts.signUp.closed, advice: texts.signUp.closedAdvice }
        : sentTo
          ? { title: texts.mail.title, advice: texts.mail.sent(sentTo) }
          : { title: texts.signUp.title, advice: "" };
  return (
    <Frame
      title={title}
      foot={
        <p>
          {texts.signUp.toSignIn}{" "}
          <Link to="/sign-in" search={to ? { to } : {}}>
            {texts.signIn.title}
          </Link>
        </p>
      }
    >
      {advice ? <p>{advice}</p> : found && <SignUpForm to={to} byMail={found.sends_mail} onMailed={setSentTo} />}
    </Frame>
  );
}

interface SignUpFormProps {
  to: string | undefined;
  /** The password is chosen with a link that is mailed. */
  byMail: boolean;
  onMailed: (email: string) => void;
}

function SignUpForm({ to, byMail, onMailed }: SignUpFormProps) {
  const [email, setEmail] = useState("");
  const [name, setName] = useState("");
  const [password, setPassword] = useState("");
  const [problem, setProblem] = useState<Problem | null>(null);
  const [isSending, setSending] = useState(false);
  const { terms_url: terms } = useBrand();
  const send = async (event: FormEvent) => {
    event.preventDefault();
    setSending(true);
    setProblem(null);
    try {
      if (byMail) {
        await post("/api/sign-up", { body: { email, name: name || null, to: localPath(to) } });
        onMailed(email);
      } else {
        await post("/api/register", { body: { email, password, name: name || null } });
        location.replace(localPath(to));
      }
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
      {!byMail && (
        <Field name={texts.password} hint={texts.passwordHint} problem={errors.password}>
          <PasswordField value={password} onChange={setPassword} autoComplete="new-password" />
        </Field>
      )}
      {terms && (
        <p className={styles.hint}>
          {texts.acceptTerms}{" "}
          <a href={terms} target="_blank" rel="noreferrer">
            {texts.terms}
          </a>
          .
        </p>
      )}
      <Button look="primary" type="submit" isBusy={isSending}>
        {byMail ? texts.signUp.mailAction : texts.signUp.action}
      </Button>
    </form>
  );
}
