import { useQuery, useQueryClient } from "@tanstack/react-query";
import { BadgeCheck, Trash2 } from "lucide-react";
import { type FormEvent, type ReactNode, useState } from "react";
import { post } from "@/api/client";
import { Problem, sentence } from "@/api/problem";
import { Button, Chip, Dialog, ErrorCard, Field, Heading, Skeleton, TextField, toast } from "@/kit";
import { PasswordField } from "@/session/PasswordField";
import { wallet } from "@/texts/wallet";
import { account } from "./queries";
import styles from "./wallet.module.css";

const texts = wallet.account;

export function Account() {
  const { data, error } = useQuery(account);
  const [isDeleting, setDeleting] = useState(false);
  if (!data) return error ? <ErrorCard title={sentence(error)} /> : <Skeleton height={140} />;
  return (
    <div className={styles.column}>
      <Heading>{texts.email}</Heading>
      <p className={styles.quiet}>
        {data.email} {data.is_verified && <Chip icon={BadgeCheck}>{texts.verified}</Chip>}
      </p>
      <EmailForm key={data.email} email={data.email} sendsMail={data.sends_mail} isVerified={data.is_verified} />
      <Heading>{texts.password}</Heading>
      <PasswordForm />
      <Heading>{texts.remove}</Heading>
      <p className={styles.quiet}>{texts.removeText}</p>
      <div>
        <Button look="danger" icon={Trash2} onClick={() => setDeleting(true)}>
          {texts.remove}
        </Button>
      </div>
      {isDeleting && <DeleteDialog onClose={() => setDeleting(false)} />}
    </div>
  );
}

/** A form whose problems are shown at their fields, or above them. */
function useSubmission(send: () => Promise<void>) {
  const [problem, setProblem] = useState<Problem | null>(null);
  const [isSending, setSending] = useState(false);
  const onSubmit = async (event: FormEvent) => {
    event.preventDefault();
    setSending(true);
    setProblem(null);
    try {
      await send();
    } catch (thrown) {
      setProblem(thrown instanceof Problem ? thrown : new Problem(sentence(thrown), 0));
    }
    setSending(false);
  };
  const errors = problem?.errors ?? {};
  const general: ReactNode = problem && !Object.keys(errors).length && <ErrorCard title={problem.message} />;
  return { onSubmit: (event: FormEvent) => void onSubmit(event), errors, general, isSending };
}

function EmailForm({ email, sendsMail, isVerified }: { email: string; sendsMail: boolean; isVerified: boolean }) {
  const client = useQueryClient();
  const [wanted, setWanted] = useState(email);
  const [password, setPassword] = useState("");
  const { onSubmit, errors, general, isSending } = useSubmission(async () => {
    const { message } = await post("/api/account/email", { body: { email: wanted, password } });
    setPassword("");
    toast(message ?? texts.saved);
    await client.invalidateQueries({ queryKey: account.queryKey });
    await client.invalidateQueries({ queryKey: ["me"] });
  });
  const isSame = wanted.trim() === email;
  return (
    <form className={styles.form} onSubmit={onSubmit}>
      {general}
      <Field name={texts.newEmail} hint={sendsMail ? texts.emailHint : undefined} problem={errors.email}>
        <TextField type="email" required value={wanted} onChange={(event) => setWanted(event.target.value)} />
      </Field>
      <Field name={texts.currentPassword} problem={errors.password}>
        <PasswordField value={password} onChange={setPassword} autoComplete="current-password" />
      </Field>
      <div>
        <Button type="submit" isBusy={isSending} disabled={!password || (isSame && (isVerified || !sendsMail))}>
          {isSame && sendsMail && !isVerified ? texts.verify : texts.changeEmail}
        </Button>
      </div>
    </form>
  );
}

function PasswordForm() {
  const [current, setCurrent] = useState("");
  const [next, setNext] = useState("");
  const { onSubmit, errors, general, isSending } = useSubmission(async () => {
    const { message } = await post("/api/account/password", {
      body: { current_password: current, new_password: next },
    });
    setCurrent("");
    setNext("");
    toast(message ?? texts.saved);
  });
  return (
    <form className={styles.form} onSubmit={onSubmit}>
      {general}
      <Field name={texts.currentPassword} problem={errors.current_password}>
        <PasswordField value={current} onChange={setCurrent} autoComplete="current-password" />
      </Field>
      <Field name={texts.newPassword} hint={texts.passwordHint} problem={errors.new_password}>
        <PasswordField value={next} onChange={setNext} autoComplete="new-password" />
      </Field>
      <div>
        <Button type="submit" isBusy={isSending} disabled={!current || !next}>
          {texts.changePassword}
        </Button>
      </div>
    </form>
  );
}

function DeleteDialog({ onClose }: { onClose: () => void }) {
  const [password, setPassword] = useState("");
  const { onSubmit, errors, general, isSending } = useSubmission(async () => {
    await post("/api/account/delete", { body: { password } });
    // reload the app, so that no data of the user is left
    location.replace("/sign-in");
  });
  return (
    <Dialog title={texts.removeTitle} isOpen onClose={onClose}>
      <form className={styles.form} onSubmit={onSubmit}>
        {general}
        <p>{texts.removeText}</p>
        <Field name={texts.currentPassword} problem={errors.password}>
          <PasswordField value={password} onChange={setPassword} autoFocus autoComplete="current-password" />
        </Field>
        <Button look="danger" type="submit" isBusy={isSending} disabled={!password}>
          {texts.removeAction}
        </Button>
      </form>
    </Dialog>
  );
}
