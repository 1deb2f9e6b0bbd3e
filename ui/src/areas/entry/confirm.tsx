import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { post } from "@/api/client";
import { Problem, sentence } from "@/api/problem";
import { Button, buttonClass, ErrorCard } from "@/kit";
import { useFragment } from "@/lib/use-fragment";
import { entry as texts } from "@/texts/entry";
import styles from "./entry.module.css";
import { Frame } from "./Frame";

const { confirm } = texts;

/** Confirms a new address. It needs a click: mail programs may open links on their own. */
export default function Confirm() {
  const token = useFragment();
  return <Confirmation key={token} token={token} />;
}

function Confirmation({ token }: { token: string }) {
  const [email, setEmail] = useState("");
  const [problem, setProblem] = useState("");
  const [isGone, setGone] = useState(false);
  const [isSending, setSending] = useState(false);
  const send = async () => {
    setSending(true);
    setProblem("");
    try {
      setEmail((await post("/api/email/confirm", { body: { token } })).data.email);
    } catch (thrown) {
      setProblem(sentence(thrown));
      setGone(thrown instanceof Problem && thrown.status === 404);
    }
    setSending(false);
  };
  if (!token || email || isGone) {
    return (
      <Frame title={email ? confirm.done : texts.reset.gone}>
        <p>{email ? confirm.doneText(email) : problem || confirm.goneAdvice}</p>
        <Link to="/" className={buttonClass({ look: "primary" })}>
          {confirm.next}
        </Link>
      </Frame>
    );
  }
  return (
    <Frame title={confirm.title}>
      <div className={styles.form}>
        {problem && <ErrorCard title={problem} />}
        <p>{confirm.about}</p>
        <Button look="primary" isBusy={isSending} onClick={() => void send()}>
          {confirm.action}
        </Button>
      </div>
    </Frame>
  );
}
