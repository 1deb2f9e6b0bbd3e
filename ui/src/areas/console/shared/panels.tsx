// Components of the worker, fleet and dispatch pages.

import { Link } from "@tanstack/react-router";
import { ArrowLeft, Copy, Eye, EyeOff } from "lucide-react";
import { type ReactNode, useEffect, useState } from "react";
import { Problem, sentence } from "@/api/problem";
import { Button, Dialog, EmptyState, ErrorCard, IconButton, Skeleton } from "@/kit";
import { copyText } from "@/kit/clipboard";
import { common } from "@/texts/common";
import { seen, console as texts } from "@/texts/console";
import styles from "./panels.module.css";

export type Tone = "good" | "bad" | "warn" | "info" | "accent" | "muted";

export function State({ tone, children, isBreathing }: { tone: Tone; children: ReactNode; isBreathing?: boolean }) {
  return (
    <span className={styles.state} data-tone={tone}>
      <span className={styles.dot} data-breathing={isBreathing || undefined} aria-hidden />
      {children}
    </span>
  );
}

const TICK_MS = 1000;

/** Components that share one clock, which ticks every second. */
const watching = new Set<(now: number) => void>();
let ticking: ReturnType<typeof setInterval> | undefined;

export function useNow(): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    watching.add(setNow);
    ticking ??= setInterval(() => {
      const at = Date.now();
      for (const each of watching) each(at);
    }, TICK_MS);
    return () => {
      watching.delete(setNow);
      if (watching.size) return;
      clearInterval(ticking);
      ticking = undefined;
    };
  }, []);
  return now;
}

/** Updates every second. */
export function TimeAgo({ at }: { at: string }) {
  const now = useNow();
  return (
    <time dateTime={at} title={texts.moment(at)}>
      {seen(at, now)}
    </time>
  );
}

export function TimeOfDay({ at }: { at: string }) {
  return (
    <time dateTime={at} title={texts.moment(at)}>
      {texts.at(at)}
    </time>
  );
}

interface CopyableProps {
  text: string;
  /** Part of the text to mask until the user reveals it. */
  secret?: string | undefined;
  name: string;
}

/** A command to copy. The copy includes the secret, even if it is masked. */
export function Copyable({ text, secret, name }: CopyableProps) {
  const [isShown, setShown] = useState(false);
  const shown = secret && !isShown ? text.replaceAll(secret, texts.hidden) : text;
  return (
    <div className={styles.copyable} role="group" aria-label={name}>
      <code>{shown}</code>
      {secret && (
        <IconButton
          icon={isShown ? EyeOff : Eye}
          name={isShown ? texts.hideSecret : texts.showSecret}
          size="small"
          onClick={() => setShown(!isShown)}
        />
      )}
      <IconButton icon={Copy} name={common.copy} size="small" onClick={() => void copyText(text)} />
    </div>
  );
}

interface ConfirmProps {
  isOpen: boolean;
  onClose: () => void;
  title: string;
  /** What the action does. */
  about: ReactNode;
  action: string;
  /** Label of the cancel button. */
  no?: string;
  isDanger?: boolean;
  isBusy?: boolean;
  onConfirm: () => void;
  children?: ReactNode;
}

export function Confirm({
  isOpen,
  onClose,
  title,
  about,
  action,
  no = common.cancel,
  isDanger,
  isBusy,
  onConfirm,
  children,
}: ConfirmProps) {
  return (
    <Dialog
      isOpen={isOpen}
      onClose={onClose}
      title={title}
      about={about}
      actions={
        <>
          <Button onClick={onClose}>{no}</Button>
          <Button look={isDanger ? "danger" : "primary"} isBusy={isBusy ?? false} onClick={onConfirm}>
            {action}
          </Button>
        </>
      }
    >
      {children}
    </Dialog>
  );
}

export function Panel({ title, aside, children }: { title: string; aside?: ReactNode; children: ReactNode }) {
  return (
    <section className={styles.panel} aria-label={title}>
      <div className={styles.panelHead}>
        <h2>{title}</h2>
        {aside}
      </div>
      {children}
    </section>
  );
}

export function BackLink({ to, page }: { to: string; page: string }) {
  return (
    <Link to={to} className={styles.back} aria-label={texts.back(page)} title={texts.back(page)}>
      <ArrowLeft aria-hidden />
      {page}
    </Link>
  );
}

export function LoadingOrError({ error, height = 240, gone }: { error: unknown; height?: number; gone?: string }) {
  if (error instanceof Problem && error.status === 404 && gone) return <EmptyState icon={EyeOff} title={gone} />;
  if (error) return <ErrorCard title={texts.failedToLoad}>{sentence(error)}</ErrorCard>;
  return (
    <div role="status" aria-label={common.loading}>
      <Skeleton height={height} />
    </div>
  );
}
