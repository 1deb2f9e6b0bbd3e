import { useMutation, useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { CircleCheck } from "lucide-react";
import { useEffect, useState } from "react";
import { here } from "@/api/client";
import { sentence } from "@/api/problem";
import { Button, buttonClass, ErrorCard, Progress } from "@/kit";
import { CompareSlider } from "@/kit/CompareSlider";
import { setup as texts } from "@/texts/setup";
import { drawSamplePicture, runFirstJob } from "./first-job";
import styles from "./JobStep.module.css";
import { firstJob, isOver } from "./queries";
import step from "./step.module.css";

interface JobStepProps {
  effectId: number;
  /** Id of a job that was run before. */
  existing: string | undefined;
}

export function JobStep({ effectId, existing }: JobStepProps) {
  const [picture, setPicture] = useState<{ file: File; url: string } | null>(null);
  useEffect(() => {
    let url = "";
    void drawSamplePicture().then((file) => {
      url = URL.createObjectURL(file);
      setPicture({ file, url });
    });
    return () => URL.revokeObjectURL(url);
  }, []);
  const run = useMutation({ mutationFn: (file: File) => runFirstJob(effectId, file) });
  const id = run.data ?? (run.isPending ? undefined : existing);
  const { data: job } = useQuery({ ...firstJob(id ?? ""), enabled: id !== undefined });
  const output = job?.status === "completed" ? job.outputs[0] : undefined;
  const isRunning = run.isPending || (id !== undefined && !(job && isOver(job.status)));
  return (
    <>
      {output && picture ? (
        <>
          <h3 className={styles.done}>
            <CircleCheck aria-hidden />
            {texts.job.doneTitle}
          </h3>
          <p>{texts.job.doneText}</p>
          <div className={styles.comparison}>
            <CompareSlider
              before={<img src={picture.url} alt={texts.job.before} />}
              after={<img src={here(output.url)} alt={texts.job.after} />}
              beforeName={texts.job.before}
              afterName={texts.job.after}
            />
          </div>
        </>
      ) : (
        <>
          <p>{texts.job.about}</p>
          {picture && <img className={styles.picture} src={picture.url} alt={texts.job.before} />}
        </>
      )}
      {run.error && <ErrorCard title={sentence(run.error)} />}
      {job && isOver(job.status) && !output && (
        <ErrorCard title={texts.job.failed} details={null}>
          {job.error}
        </ErrorCard>
      )}
      {isRunning && (
        <div role="status" className={styles.progress}>
          <Progress value={null} name={texts.job.running} />
          <span>
            {run.isPending ? texts.job.sending : job?.status === "processing" ? texts.job.running : texts.job.waiting}
          </span>
          {job?.waiting?.text && <p className={step.hint}>{job.waiting.text}</p>}
        </div>
      )}
      <div className={step.actions}>
        {output ? (
          <>
            <Link to="/studio" className={buttonClass({})}>
              {texts.job.toStudio}
            </Link>
            <Link to="/console" className={buttonClass({ look: "primary" })}>
              {texts.job.toConsole}
            </Link>
          </>
        ) : (
          <Button
            look="primary"
            isBusy={isRunning}
            disabled={!picture}
            onClick={() => picture && run.mutate(picture.file)}
          >
            {id ? texts.job.again : texts.job.action}
          </Button>
        )}
      </div>
    </>
  );
}
