import { useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import {
  ArrowDown,
  ArrowUp,
  Ban,
  Braces,
  ChevronsUp,
  Copy,
  Dices,
  Download,
  Ellipsis,
  ImageUp,
  type LucideIcon,
  Pause,
  Play,
  RotateCcw,
  SlidersHorizontal,
  Terminal,
  Trash2,
} from "lucide-react";
import { useState } from "react";
import { here, newKey, post } from "@/api/client";
import { aboutJob } from "@/api/queries";
import type { Job } from "@/api/types";
import { isBlocked, type Subject, type VerbName, verbsOf } from "@/areas/queue/rules";
import { Button, buttonClass, IconButton, Menu, type MenuItem, toast, toastProblem } from "@/kit";
import { job as texts } from "@/texts/job";
import { nameOfVerb, priorityItems, type useDoing } from "./doing";
import styles from "./parts.module.css";
import { callOf, commandOf, hasEnded, shownOf } from "./rules";

export const VERB_ICONS: Readonly<Record<VerbName, LucideIcon>> = {
  pause: Pause,
  pauseNow: Pause,
  resume: Play,
  next: ChevronsUp,
  up: ArrowUp,
  down: ArrowDown,
  retry: RotateCcw,
  retrySeeds: Dices,
  retryCanceled: RotateCcw,
  again: RotateCcw,
  againSeeds: Dices,
  cancel: Ban,
  delete: Trash2,
};

export const subjectOfJob = (job: Job): Subject => ({
  id: job.id,
  isBatch: false,
  status: job.status,
  counts: { [job.status]: 1 },
  hasSeed: job.seed !== null,
  isRetried: Boolean(job.retried_as),
  priority: job.priority,
});

export async function copy(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    toast({ text: texts.copied, tone: "good" });
  } catch {
    toast({ text: texts.notCopied, tone: "bad" });
  }
}

const IN_MENU: readonly VerbName[] = ["up", "down", "delete"];

interface ActionsProps {
  job: Job;
  /** Which of what it made is shown, and is meant. */
  at: number;
  doing: ReturnType<typeof useDoing>;
}

export function Actions({ job, at, doing }: ActionsProps) {
  const navigate = useNavigate();
  const { data: about = null } = useQuery(aboutJob(job.id));
  const [isTaking, setTaking] = useState(false);
  const subject = subjectOfJob(job);
  const verbs = verbsOf(subject);
  const shown = shownOf(job, about, at);
  const slug = job.workflow_slug ?? about?.workflow_slug;

  const item = (verb: VerbName): MenuItem => ({
    name: nameOfVerb(verb, subject),
    icon: VERB_ICONS[verb],
    isDanger: verb === "delete" || verb === "cancel",
    run: () => void doing.doVerb(verb, subject),
  });
  async function takeAsInput(number: number) {
    setTaking(true);
    try {
      const path = { job_id: job.id, number };
      const { data: file } = await post("/api/ai-jobs/{job_id}/outputs/{number}/as-input", { path });
      await navigate({ to: "/create", search: { input: file.id } });
    } catch (thrown) {
      toastProblem(thrown);
    } finally {
      setTaking(false);
    }
  }

  return (
    <div className={styles.actions} role="group" aria-label={texts.name}>
      {verbs
        .filter((each) => !IN_MENU.includes(each))
        .map((verb, index) => (
          <Button
            key={verb}
            icon={VERB_ICONS[verb]}
            look={index === 0 && job.status === "failed" ? "primary" : "plain"}
            onClick={() => void doing.doVerb(verb, subject)}
          >
            {nameOfVerb(verb, subject)}
          </Button>
        ))}
      {(hasEnded(job) || isBlocked(job.waiting?.reason)) && slug && (
        <Button
          icon={SlidersHorizontal}
          onClick={() => void navigate({ to: "/create", search: { workflow: slug, from: job.id } })}
        >
          {texts.changeAndRun}
        </Button>
      )}
      {shown?.number && (
        <Button icon={ImageUp} isBusy={isTaking} onClick={() => void takeAsInput(shown.number as number)}>
          {texts.useAsInput}
        </Button>
      )}
      {shown && (
        <a
          className={buttonClass({})}
          href={here(shown.url)}
          download={shown.name}
          aria-label={texts.download}
          title={texts.download}
        >
          <Download aria-hidden />
        </a>
      )}
      <Menu
        items={[
          verbs.filter((each) => each === "up" || each === "down").map(item),
          priorityItems(subject, (priority) => void doing.setPriority(subject, priority)),
          [
            {
              name: texts.copyCommand,
              icon: Terminal,
              run: () => void copy(commandOf(job, about)),
            },
            {
              name: texts.copyCall,
              icon: Braces,
              run: () => void copy(callOf(job, about, location.origin, newKey())),
            },
            { name: texts.copyId, icon: Copy, run: () => void copy(job.id) },
          ],
          verbs.filter((each) => each === "delete").map(item),
        ]}
      >
        <IconButton icon={Ellipsis} name={texts.more} look="plain" />
      </Menu>
    </div>
  );
}
