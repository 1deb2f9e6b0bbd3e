import { useMutation, useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Play, Square } from "lucide-react";
import { useState } from "react";
import { get, post } from "@/api/client";
import { Problem, sentence } from "@/api/problem";
import { job } from "@/api/queries";
import type { Job } from "@/api/types";
import { pendingUploads } from "@/areas/create/drafts";
import type { Form } from "@/areas/create/form";
import { errorsByField, jobRequests } from "@/areas/create/submission";
import { explainError } from "@/jobs/errors";
import { describeProgress } from "@/jobs/progress";
import { Button, buttonClass, ErrorCard, Field, Progress, Select, toastProblem } from "@/kit";
import { Media } from "@/kit/Media";
import { duration } from "@/texts/common";
import { workflow as all } from "@/texts/console-workflows";
import { fitting, type WorkerCheck } from "../catalogue/queries";
import { consoleKeys } from "../shared/live";
import { Section, sheet } from "../shared/sheet";
import styles from "./workflow.module.css";

const texts = all.run;
const ANY = "any";
const REFETCH_MS = 1000;
const hasEnded = (status: string): boolean => ["completed", "failed", "canceled"].includes(status);

interface TestRunProps {
  slug: string;
  form: Form;
  isDirty: boolean;
  /** Returns whether saving worked. */
  save: () => Promise<boolean>;
}

export function TestRun({ slug, form, isDirty, save }: TestRunProps) {
  const { data: fit } = useQuery(fitting(slug));
  const [worker, setWorker] = useState(ANY);
  const begin = useMutation({
    mutationFn: async () => {
      // one job: a multi-line text is one prompt
      const [body] = jobRequests(form.choice, { ...form.draft, byLine: false, negativesByLine: false });
      const { data } = await post("/api/admin/workflows/{slug}/test-run", {
        path: { slug },
        body: {
          ...(worker !== ANY && { worker_id: worker }),
          ...(body?.input_file_id && { input_file_id: body.input_file_id }),
          values: body?.input_payload ?? {},
        },
      });
      return data.job_id;
    },
    onError: (thrown) => {
      if (thrown instanceof Problem) form.setProblems(errorsByField(form.choice, thrown.errors));
    },
  });
  const { data: made } = useQuery({
    ...job(begin.data ?? ""),
    enabled: begin.data !== undefined,
    refetchInterval: ({ state }) => (state.data && hasEnded(state.data.status) ? false : REFETCH_MS),
  });
  const isSending = pendingUploads(form.draft).length > 0;
  const isAtIt = begin.isPending || (begin.data !== undefined && !(made && hasEnded(made.status)));
  const run = async () => {
    if (form.validate()) return;
    if (isDirty && !(await save())) return;
    begin.mutate();
  };
  const workers = fit?.workers.items ?? [];
  const takenBy = useTestWorker(made);
  return (
    <Section title={texts.title} about={texts.about}>
      {fit && fit.assigned_workers === 0 && <p className={sheet.muted}>{texts.noWorkers}</p>}
      <div className={styles.run}>
        <Field name={texts.worker}>
          <Select
            value={worker}
            choices={[
              { value: ANY, name: texts.any },
              ...workers.map((each) => ({
                value: each.worker_id,
                name: each.fit === "unable" ? texts.unable(each.worker_id) : each.worker_id,
              })),
            ]}
            onChange={setWorker}
          />
        </Field>
        <Button
          look="primary"
          icon={Play}
          isBusy={isAtIt}
          disabled={isSending || fit?.assigned_workers === 0}
          onClick={() => void run()}
        >
          {isSending ? texts.sending : isDirty ? texts.saveAndRun : texts.action}
        </Button>
      </div>
      {workers.length > 0 && <p className={sheet.muted}>{targetText(workers, worker)}</p>}
      {begin.error && <ErrorCard title={sentence(begin.error)} />}
      {made && begin.data && <Outcome made={made} worker={takenBy} />}
    </Section>
  );
}

function Outcome({ made, worker }: { made: Job; worker: string | null }) {
  const [output] = made.outputs;
  const cancel = () => void post("/api/ai-jobs/{job_id}/cancel", { path: { job_id: made.id } }).catch(toastProblem);
  if (!hasEnded(made.status)) {
    const isRunning = made.status === "processing";
    const far = describeProgress(made.progress);
    const howFarItIs = worker ? texts.runningOn(worker, far.text) : far.text;
    const words = isRunning ? howFarItIs : (made.waiting?.text ?? texts.queued);
    return (
      <div role="status" className={styles.going}>
        <Progress value={isRunning ? far.value : null} name={texts.progress} />
        <div className={sheet.line}>
          <span className={sheet.grow}>{words}</span>
          <Button size="small" icon={Square} onClick={cancel}>
            {texts.cancel}
          </Button>
        </div>
      </div>
    );
  }
  const open = (
    <Link to="/jobs/$id" params={{ id: made.id }} className={buttonClass({ size: "small" })}>
      {texts.open}
    </Link>
  );
  if (!output) {
    const explained = made.error ? explainError(made.error, null) : null;
    return (
      <ErrorCard title={resultTitle(made, worker)} actions={open}>
        {explained && (
          <>
            <p>{explained.cause}</p>
            <p>{explained.advice}</p>
          </>
        )}
      </ErrorCard>
    );
  }
  return (
    <div className={styles.going} role="status">
      <div className={styles.result}>
        <Media file={output} name={texts.result} isWhole />
      </div>
      <div className={sheet.line}>
        <span className={sheet.grow}>{resultText(made, worker)}</span>
        {open}
      </div>
    </div>
  );
}

const MAX_NAMED = 3;

function targetText(workers: readonly WorkerCheck[], chosen: string): string {
  if (chosen !== ANY) return texts.onOne(chosen);
  const able = workers.filter((each) => each.fit !== "unable").map((each) => each.worker_id);
  return able.length ? texts.onFirst(able.slice(0, MAX_NAMED), able.length - MAX_NAMED) : texts.nobodyCan;
}

/** The worker that leased the job, if any. */
function useTestWorker(made: Job | undefined): string | null {
  const isTaken = made !== undefined && made.started_at !== null;
  const { data } = useQuery({
    queryKey: [...consoleKeys.dispatches, "of job", made?.id, made?.status],
    queryFn: ({ signal }) => get("/api/admin/dispatches", { query: { search: made?.id ?? "", limit: 1 }, signal }),
    enabled: isTaken,
  });
  return data?.items[0]?.last_worker_id ?? null;
}

function resultTitle(made: Job, worker: string | null): string {
  if (made.status === "canceled") return texts.canceled;
  return worker ? texts.failedOn(worker) : texts.failed;
}

function resultText(made: Job, worker: string | null): string {
  if (!made.started_at || !made.completed_at) return texts.done;
  const seconds = (Date.parse(made.completed_at) - Date.parse(made.started_at)) / 1000;
  return texts.doneIn(duration(seconds), worker);
}
