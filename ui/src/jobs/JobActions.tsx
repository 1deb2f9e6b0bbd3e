import { useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { Braces, Copy, Download, Ellipsis, ImageUp, SlidersHorizontal, Terminal } from "lucide-react";
import { useState } from "react";
import { here, newKey, post } from "@/api/client";
import { aboutJob } from "@/api/queries";
import type { Job } from "@/api/types";
import { Button, buttonClass, IconButton, Menu, toastProblem } from "@/kit";
import { copyText } from "@/kit/clipboard";
import { useSession } from "@/session/session";
import { job as texts } from "@/texts/job";
import { ACTION_ICONS, actionItem, actionName, priorityItems } from "./action-menu";
import { actionsFor, isBlocked, type JobAction, targetOfJob } from "./actions";
import styles from "./JobActions.module.css";
import { hasEnded } from "./job";
import { selectedFile } from "./outputs";
import { curlCommand, shellCommand } from "./rerun";
import type { JobActions as Actions } from "./use-job-actions";

const IN_MENU: readonly JobAction[] = ["up", "down", "delete"];

interface JobActionsProps {
  job: Job;
  /** Index of the displayed file, which the file actions apply to. */
  at: number;
  actions: Actions;
}

export function JobActions({ job, at, actions }: JobActionsProps) {
  const navigate = useNavigate();
  const { data: about = null } = useQuery(aboutJob(job.id));
  const { desk } = useSession();
  const [isImporting, setImporting] = useState(false);
  const target = targetOfJob(job);
  const available = actionsFor(target);
  const file = selectedFile(job, at);
  const slug = job.workflow_slug ?? about?.workflow_slug;

  const run = (action: JobAction) => void actions.run(action, target);
  const items = (...wanted: JobAction[]) =>
    available.filter((each) => wanted.includes(each)).map((each) => actionItem(each, target, () => run(each)));

  async function importAsInput(number: number) {
    setImporting(true);
    try {
      const path = { job_id: job.id, number };
      const { data } = await post("/api/ai-jobs/{job_id}/outputs/{number}/as-input", { path });
      await navigate({ to: "/create", search: { input: data.id } });
    } catch (thrown) {
      toastProblem(thrown);
    } finally {
      setImporting(false);
    }
  }

  return (
    <div className={styles.actions} role="group" aria-label={texts.name}>
      {available
        .filter((each) => !IN_MENU.includes(each))
        .map((each, index) => (
          <Button
            key={each}
            icon={ACTION_ICONS[each]}
            look={index === 0 && job.status === "failed" ? "primary" : "plain"}
            onClick={() => run(each)}
          >
            {actionName(each, target)}
          </Button>
        ))}
      {(hasEnded(job) || isBlocked(job.waiting?.reason)) && slug && desk && (
        <Button
          icon={SlidersHorizontal}
          onClick={() => void navigate({ to: "/create", search: { workflow: slug, from: job.id } })}
        >
          {texts.changeAndRun}
        </Button>
      )}
      {file?.number && (
        <Button icon={ImageUp} isBusy={isImporting} onClick={() => void importAsInput(file.number as number)}>
          {texts.useAsInput}
        </Button>
      )}
      {file && (
        <a
          className={buttonClass({})}
          href={here(file.url)}
          download={file.name}
          aria-label={texts.download}
          title={texts.download}
        >
          <Download aria-hidden />
        </a>
      )}
      <Menu
        items={[
          items("up", "down"),
          priorityItems(target, (priority) => void actions.setPriority(target, priority)),
          [
            { name: texts.copyCommand, icon: Terminal, run: () => void copyText(shellCommand(job, about)) },
            {
              name: texts.copyCall,
              icon: Braces,
              run: () => void copyText(curlCommand(job, about, location.origin, newKey())),
            },
            { name: texts.copyId, icon: Copy, run: () => void copyText(job.id) },
          ],
          items("delete"),
        ]}
      >
        <IconButton icon={Ellipsis} name={texts.more} look="plain" />
      </Menu>
    </div>
  );
}
