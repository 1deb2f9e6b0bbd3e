import { Link } from "@tanstack/react-router";
import { type FormEvent, useState } from "react";
import { post } from "@/api/client";
import { Problem, sentence } from "@/api/problem";
import { Button, ErrorCard, Field, TextField } from "@/kit";
import { entry as texts } from "@/texts/entry";
import styles from "./entry.module.css";
import { Frame } from "./Frame";

export default function Forgot() {
  const [sentTo, setSentTo] = useState("");
  return (
    <Frame
      title={sentTo ? texts.mail.title : texts.forgot.title}
      foot={<Link to="/sign-in">{texts.reset.toSignIn}</Link>}
    >
      {sentTo ? <p>{texts.mail.sent(sentTo)}</p> : <ForgotForm onSent={setSentTo} />}
    </Frame>
  );
}

function ForgotForm({ onSent }: { onSent: (email: string) => void }) {
  const [email, setEmail] = useState("");
  const [problem, setProblem] = useState<Problem | null>(null);
  const [isSending, setSending] = useState(false);
  const send = async (event: FormEvent) => {
    event.preventDefault();
    setSending(true);
    setProblem(null);
    try {
      await post("/api/reset/request", { body: { email } });
      onSent(email);
    } catch (thrown) {
      setProblem(thrown instanceof Problem ? thrown : new Problem(sentence(thrown), 0));
      setSending(false);
    }
  };
  return (
    <form className={styles.form} onSubmit={(event) => void send(event)}>
      {problem && !problem.errors.email && <ErrorCard title={problem.message} />}
      <Field name={texts.email} problem={problem?.errors.email}>
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
      <Button look="primary" type="submit" isBusy={isSending}>
        {texts.forgot.action}
      </Button>
    </form>
  );
}
