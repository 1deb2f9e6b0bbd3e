import type { AboutJob } from "@/api/types";
import { job as texts } from "@/texts/job";
import styles from "./section.module.css";

/** Address of the file with the workflow of a job, for ComfyUI. */
export const workflowUrl = (jobId: string): string => `/api/desk/jobs/${jobId}/workflow`;

/** The ComfyUI that ran a job, and the workflow to drop into it. Scripts have none. */
export function ComfyuiLinks({ jobId, about }: { jobId: string; about: AboutJob }) {
  return (
    <span className={styles.links}>
      {about.comfyui_url && (
        <a href={about.comfyui_url} target="_blank" rel="noreferrer">
          {texts.openInComfyui}
        </a>
      )}
      <a href={workflowUrl(jobId)} download title={texts.openWorkflowAdvice}>
        {texts.downloadWorkflow}
      </a>
      <small>{texts.openWorkflowAdvice}</small>
    </span>
  );
}
