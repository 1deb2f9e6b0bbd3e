import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { CircleX, RotateCcw } from "lucide-react";
import { useState } from "react";
import { post } from "@/api/client";
import { explainError, workerMessage } from "@/jobs/errors";
import { Button, ErrorCard, Field, Heading, NumberField, Progress, toast, toastProblem } from "@/kit";
import { Facts } from "@/kit/Facts";
import { Inspector } from "@/kit/Inspector";
import { duration } from "@/texts/common";
import { console as shared } from "@/texts/console";
import { dispatches as words } from "@/texts/console-dispatches";
import { type Dispatch, dispatch as dispatchQuery, hasEnded, waitingOf } from "../queries/dispatches";
import { consoleKeys } from "../shared/live";
import { Confirm, LoadingOrError } from "../shared/panels";
import { percentOf, progressPart } from "../workers/rules";
import styles from "./dispatches.module.css";
import { History } from "./History";
import { allowedActions, runCost } from "./rules";
import { DispatchStatus } from "./StatusOf";
import { Support } from "./Support";

const texts = words.dispatch;

export function DispatchPanel({ id, onClose }: { id: string; onClose: () => void }) {
  const { data: dispatch, error } = useQuery(dispatchQuery(id));
  return (
    <Inspector title={texts.title(id)} name={texts.title(id)} onClose={onClose}>
      {dispatch ? <Details dispatch={dispatch} /> : <LoadingOrError error={error} gone={texts.gone} />}
    </Inspector>
  );
}

function Details({ dispatch }: { dispatch: Dispatch }) {
  const { facts } = texts;
  const worker = dispatch.worker_id ?? dispatch.last_worker_id;
  return (
    <>
      <div className={styles.state}>
        <DispatchStatus status={dispatch.status} />
        {dispatch.status === "leased" && (
          <Progress
            value={progressPart(dispatch)}
            name={[words.progress, percentOf(dispatch)].filter(Boolean).join(", ")}
          />
        )}
      </div>
      <Actions dispatch={dispatch} />
      {dispatch.status === "queued" && <WaitingReason id={String(dispatch.id)} />}
      {dispatch.last_error && dispatch.status !== "completed" && <ErrorDetails error={dispatch.last_error} />}
      <Support dispatch={dispatch} />
      <Heading>{facts.title}</Heading>
      <Facts
        facts={[
          [facts.job, dispatch.job_id],
          [facts.workflow, dispatch.workflow_slug],
          [
            dispatch.worker_id ? facts.worker : facts.lastWorker,
            worker && (
              <Link to="/console/workers/$id" params={{ id: worker }} className={styles.link}>
                {worker}
              </Link>
            ),
          ],
          [
            facts.tenant,
            <Link key="tenant" to="/console/tenants/$id" params={{ id: dispatch.tenant_id }} className={styles.link}>
              {dispatch.tenant_id}
            </Link>,
          ],
          [facts.stage, shared.stages[dispatch.stage] ?? dispatch.stage],
          [facts.provider, dispatch.provider],
          [facts.attempts, words.attemptsOf(dispatch.attempts, dispatch.max_attempts)],
          [facts.priority, dispatch.priority],
          [facts.created, shared.moment(dispatch.created_at)],
          [
            facts.available,
            dispatch.available_at > dispatch.created_at && !hasEnded(dispatch.status)
              ? shared.moment(dispatch.available_at)
              : null,
          ],
          [facts.leased, dispatch.leased_at && shared.moment(dispatch.leased_at)],
          [
            facts.expires,
            dispatch.status === "leased" && dispatch.lease_expires_at ? shared.moment(dispatch.lease_expires_at) : null,
          ],
          [facts.finished, dispatch.finished_at && shared.moment(dispatch.finished_at)],
          [facts.took, dispatch.duration_seconds === null ? null : duration(dispatch.duration_seconds)],
          [facts.cost, dispatch.machine_cost === null ? null : runCost(dispatch.machine_cost, dispatch.status)],
          [facts.batch, dispatch.batch_id],
        ]}
      />
      <History id={String(dispatch.id)} />
    </>
  );
}

function ErrorDetails({ error }: { error: string }) {
  // no advice: it addresses the user who submitted the job
  const { cause, details } = explainError(workerMessage(error), error);
  return <ErrorCard title={cause} details={details} />;
}

function WaitingReason({ id }: { id: string }) {
  const { data } = useQuery(waitingOf(id));
  if (!data) return null;
  return (
    <ErrorCard tone="info" title={data.text}>
      {texts.able(data.workers)}
    </ErrorCard>
  );
}

function Actions({ dispatch }: { dispatch: Dispatch }) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const [isAsked, ask] = useState(false);
  const [priority, setPriority] = useState<number | null>(dispatch.priority);
  const path = { dispatch_id: dispatch.id };
  const verbs = allowedActions(dispatch);
  const again = () =>
    Promise.all([
      client.invalidateQueries({ queryKey: consoleKeys.dispatch(String(dispatch.id)) }),
      client.invalidateQueries({ queryKey: consoleKeys.dispatches }),
    ]);
  const failed = (thrown: unknown) => {
    ask(false);
    toastProblem(thrown);
    void again();
  };
  const cancel = useMutation({
    mutationFn: () => post("/api/admin/dispatches/{dispatch_id}/cancel", { path }),
    onSuccess: async ({ data }) => {
      ask(false);
      toast({ text: data.status === "canceled" ? texts.canceled : texts.canceling, tone: "good" });
      await again();
    },
    onError: failed,
  });
  const retry = useMutation({
    mutationFn: () => post("/api/admin/dispatches/{dispatch_id}/retry", { path }),
    onSuccess: async ({ data }) => {
      const open = data.dispatch ? String(data.dispatch.id) : "";
      toast({
        text: texts.retried(data.job_id),
        tone: "good",
        ...(open && {
          action: {
            name: texts.openRetry,
            run: () => void navigate({ to: "/console/dispatches", search: { open } }),
          },
        }),
      });
      await again();
    },
    onError: failed,
  });
  const change = useMutation({
    mutationFn: (value: number) =>
      post("/api/admin/dispatches/{dispatch_id}/priority", { path, body: { priority: value } }),
    onSuccess: async () => {
      toast({ text: texts.prioritized, tone: "good" });
      await again();
    },
    onError: failed,
  });
  if (!verbs.cancel && !verbs.retry && !verbs.priority) return null;
  return (
    <div className={styles.actions} role="group" aria-label={texts.actions}>
      {verbs.priority && (
        <form
          className={styles.priority}
          onSubmit={(event) => {
            event.preventDefault();
            if (priority !== null) change.mutate(priority);
          }}
        >
          <Field name={texts.priority} aside={texts.priorityHint}>
            <NumberField
              isWhole
              value={priority}
              onChange={(value) => setPriority(value === null ? null : Number(value))}
            />
          </Field>
          <Button
            type="submit"
            isBusy={change.isPending}
            disabled={priority === null || priority === dispatch.priority}
          >
            {texts.setPriority}
          </Button>
        </form>
      )}
      {verbs.retry && (
        <Button icon={RotateCcw} isBusy={retry.isPending} onClick={() => retry.mutate()}>
          {texts.retry}
        </Button>
      )}
      {verbs.cancel && (
        <Button look="danger" icon={CircleX} onClick={() => ask(true)}>
          {texts.cancel}
        </Button>
      )}
      <Confirm
        isOpen={isAsked}
        onClose={() => ask(false)}
        title={texts.cancelTitle}
        about={texts.cancelAbout(dispatch.status === "leased")}
        action={texts.cancelAction}
        no={texts.cancelNot}
        isDanger
        isBusy={cancel.isPending}
        onConfirm={() => cancel.mutate()}
      />
    </div>
  );
}
