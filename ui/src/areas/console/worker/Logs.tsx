import { useQuery } from "@tanstack/react-query";
import { Copy, ScrollText } from "lucide-react";
import { useEffect, useRef, useState } from "react";
import { Button, IconButton } from "@/kit";
import { copyText } from "@/kit/clipboard";
import { worker as words } from "@/texts/console-workers";
import { logsOf } from "../queries/workers";
import { LoadingOrError, Panel, TimeAgo } from "../shared/panels";
import { lineOf } from "./log-lines";
import styles from "./worker.module.css";

const { logs: texts } = words;

/** The last log lines. The worker sends them only while this is open. */
export function Logs({ id }: { id: string }) {
  const [isOpen, setOpen] = useState(false);
  if (isOpen) return <Lines id={id} />;
  return (
    <Panel title={texts.title}>
      <Button icon={ScrollText} className={styles.start ?? ""} onClick={() => setOpen(true)}>
        {texts.open}
      </Button>
    </Panel>
  );
}

function Lines({ id }: { id: string }) {
  const { data, error } = useQuery(logsOf(id));
  const place = useRef<HTMLPreElement>(null);
  const lines = (data?.lines ?? []).map(lineOf);
  const text = lines.join("\n");
  // follow the newest lines
  useEffect(() => {
    if (text) place.current?.scrollTo({ top: place.current.scrollHeight });
  }, [text]);
  return (
    <Panel
      title={texts.title}
      aside={
        data?.received_at && (
          <span className={styles.logAside}>
            <TimeAgo at={data.received_at} />
            <IconButton icon={Copy} name={texts.copy} size="small" onClick={() => void copyText(text)} />
          </span>
        )
      }
    >
      {!data && <LoadingOrError error={error} height={80} />}
      {data && !data.received_at && (
        <p role="status" className={styles.quiet}>
          {texts.asked}
        </p>
      )}
      {data?.received_at && lines.length === 0 && <p className={styles.quiet}>{texts.empty}</p>}
      {lines.length > 0 && (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: must scroll by keyboard
        <pre ref={place} className={styles.log} tabIndex={0} role="log" aria-label={texts.name}>
          {text}
        </pre>
      )}
    </Panel>
  );
}
