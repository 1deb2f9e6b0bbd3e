import { type FormEvent, type ReactNode, useState } from "react";
import { post } from "@/api/client";
import { Problem, sentence } from "@/api/problem";
import type { Me } from "@/api/types";
import { ErrorCard, Field, TextField } from "@/kit";
import { entry as texts } from "@/texts/entry";
import { PasswordField } from "./PasswordField";
import styles from "./SignInForm.module.css";

interface SignInFormProps {
  /** Id of the form, for a submit button outside of it. */
  id?: string;
  email?: string;
  onSignedIn: (user: Me) => void;
  /** The submit button. */
  children?: (isSending: boolean) => ReactNode;
}

export function SignInForm({ id, email: known = "", onSignedIn, children }: SignInFormProps) {
  const [email, setEmail] = useState(known);
  const [password, setPassword] = useState("");
  const [problem, setProblem] = useState<string | null>(null);
  const [isSending, setSending] = useState(false);
  const send = async (event: FormEvent) => {
    event.preventDefault();
    setSending(true);
    setProblem(null);
    try {
      const { data } = await post("/api/login", { body: { email, password } });
      onSignedIn(data.user);
    } catch (thrown) {
      setPassword("");
      setProblem(thrown instanceof Problem && thrown.status === 422 ? texts.signIn.wrong : sentence(thrown));
      setSending(false);
    }
  };
  return (
    <form id={id} className={styles.form} onSubmit={(event) => void send(event)}>
      {problem && <ErrorCard title={problem} />}
      <Field name={texts.email}>
        <TextField
          type="email"
          name="email"
          autoComplete="username"
          required
          autoFocus={!known}
          value={email}
          onChange={(event) => setEmail(event.target.value)}
        />
      </Field>
      <Field name={texts.password}>
        <PasswordField
          value={password}
          onChange={setPassword}
          autoFocus={Boolean(known)}
          autoComplete="current-password"
        />
      </Field>
      {children?.(isSending)}
    </form>
  );
}
