import { useQueryClient } from "@tanstack/react-query";
import { CircleAlert, CircleCheck, KeyRound, Send, Trash2 } from "lucide-react";
import { type FormEvent, useEffect, useState } from "react";
import { post, put, remove } from "@/api/client";
import { Problem, sentence } from "@/api/problem";
import { Button, Dialog, Field, TextField, toast, toastProblem } from "@/kit";
import { CopyField } from "@/kit/CopyField";
import { common } from "@/texts/common";
import { wallet } from "@/texts/wallet";
import { webhook } from "./queries";
import styles from "./wallet.module.css";

const texts = wallet.webhooks;

interface TestResult {
  isDelivered: boolean;
  status: number | null;
  error: string | null;
}

export function WebhookForm({ url: saved, hasSecret }: { url: string | null; hasSecret: boolean }) {
  const client = useQueryClient();
  const [url, setUrl] = useState(saved ?? "");
  const [problem, setProblem] = useState<string | null>(null);
  const [busy, setBusy] = useState<"save" | "test" | "remove" | null>(null);
  const [asked, setAsked] = useState<"rotate" | "remove" | null>(null);
  const [secret, setSecret] = useState<string | null>(null);
  const [tried, setTried] = useState<TestResult | null>(null);
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
