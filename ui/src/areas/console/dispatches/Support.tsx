// A job as its customer sees it, with the actions that an operator can take for the customer.

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Coins, Gift } from "lucide-react";
import { useState } from "react";
import { post } from "@/api/client";
import { textOf } from "@/api/json";
import { clockTime } from "@/jobs/dates";
import { Viewer } from "@/jobs/Viewer";
import { Button, ErrorCard, Heading, toast, toastProblem } from "@/kit";
import { Facts } from "@/kit/Facts";
import { dispatches as words } from "@/texts/console-dispatches";
import { shared } from "@/texts/console-shared";
import { job as jobTexts } from "@/texts/job";
import { type Dispatch, hasEnded, type SupportJob, supportOf } from "../queries/dispatches";
import { consoleKeys } from "../shared/live";
import { Confirm } from "../shared/panels";
import styles from "./dispatches.module.css";
import { refundableTokens } from "./rules";

const texts = words.support;

export function Support({ dispatch }: { dispatch: Dispatch }) {
  const { data, error } = useQuery(supportOf(String(dispatch.id)));
  const [at, setAt] = useState(0);
  if (!data) return error ? <ErrorCard tone="info" title={texts.gone} /> : null;
  const { job } = data;
  return (
    <section className={styles.history} aria-label={texts.title}>
      <Heading>{texts.title}</Heading>
      {/* only the customer may see the preview of a running job */}
      {job.status !== "processing" && <Viewer job={job} at={at} onAt={setAt} />}
      {job.error && <ErrorCard title={job.error} />}
      <SupportActions dispatch={dispatch} found={data} />
      <SupportFacts dispatch={dispatch} found={data} />
      <Heading>{texts.events}</Heading>
      <ol className={styles.attempts}>
        {data.events.map((each) => (
          <li key={each.id}>
            <time>{typeof each.data.at === "string" && clockTime.format(new Date(each.data.at))}</time>
            <span>{jobTexts.events[each.type] ?? each.type}</span>
          </li>
        ))}
      </ol>
    </section>
  );
}

function SupportFacts({ dispatch, found: { job, ...found } }: { dispatch: Dispatch; found: SupportJob }) {
  const { facts } = texts;
  return (
    <Facts
      facts={[
        [
          facts.customer,
          <Link key="customer" to="/console/tenants/$id" params={{ id: dispatch.tenant_id }} className={styles.link}>
            {found.email ?? dispatch.tenant_id}
          </Link>,
        ],
        [
          facts.effect,
          found.effect_slug && (
            <Link to="/console/effects/$slug" params={{ slug: found.effect_slug }} className={styles.link}>
              {found.effect_name || found.effect_slug}
            </Link>
          ),
        ],
        [facts.price, shared.tokens(job.reserved_tokens)],
        [facts.charged, job.charged_tokens == null ? null : shared.tokens(job.charged_tokens)],
        [facts.refunded, job.refunded_tokens ? shared.tokens(job.refunded_tokens) : null],
        ...Object.entries(found.values).map(([key, value]) => [key, textOf(value)] as const),
      ]}
    />
  );
}

function SupportActions({ dispatch, found }: { dispatch: Dispatch; found: SupportJob }) {
  const client = useQueryClient();
  const [asked, ask] = useState<"run_free" | "refund" | null>(null);
  const path = { dispatch_id: dispatch.id };
  const renew = () =>
    Promise.all([
      client.invalidateQueries({ queryKey: consoleKeys.dispatch(String(dispatch.id)) }),
      client.invalidateQueries({ queryKey: consoleKeys.dispatches }),
    ]);
  const runFree = useMutation({
    mutationFn: () => post("/api/admin/dispatches/{dispatch_id}/run-free", { path }),
    onSuccess: ({ data }) => toast({ text: texts.ranFree(data.job_id), tone: "good" }),
    onError: toastProblem,
    onSettled: () => {
      ask(null);
      return renew();
    },
  });
  const refund = useMutation({
    mutationFn: () => post("/api/admin/dispatches/{dispatch_id}/refund", { path }),
    onSuccess: ({ data }) => toast({ text: texts.refunded(data.tokens), tone: "good" }),
    onError: toastProblem,
    onSettled: () => {
      ask(null);
      return renew();
    },
  });
  const tokens = refundableTokens(found.job);
  if (!hasEnded(dispatch.status)) return null;
  return (
    <div className={styles.actions} role="group" aria-label={texts.actions}>
      <Button icon={Gift} onClick={() => ask("run_free")}>
        {texts.runFree}
      </Button>
      {tokens > 0 && (
        <Button icon={Coins} onClick={() => ask("refund")}>
          {texts.refund(tokens)}
        </Button>
      )}
      <Confirm
        isOpen={asked === "run_free"}
        onClose={() => ask(null)}
        title={texts.runFreeTitle}
        about={texts.runFreeAbout(found.email)}
        action={texts.runFree}
        isBusy={runFree.isPending}
        onConfirm={() => runFree.mutate()}
      />
      <Confirm
        isOpen={asked === "refund"}
        onClose={() => ask(null)}
        title={texts.refundTitle(tokens)}
        about={texts.refundAbout(found.email)}
        action={texts.refund(tokens)}
        isBusy={refund.isPending}
        onConfirm={() => refund.mutate()}
      />
    </div>
  );
}
