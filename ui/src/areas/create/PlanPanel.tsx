import { useQuery } from "@tanstack/react-query";
import { Boxes, Cuboid, Info } from "lucide-react";
import type { ReactNode } from "react";
import { counts } from "@/api/queries";
import { ErrorCard } from "@/kit";
import { useSession } from "@/session/session";
import { create as texts } from "@/texts/create";
import { BatchOptions } from "./BatchOptions";
import { CommandPreview } from "./CommandPreview";
import type { Command } from "./command";
import { type Form, missingFileInput } from "./form";
import { type Choice, primaryOf } from "./inputs";
import { JobPreview } from "./JobPreview";
import missingStyles from "./missing.module.css";
import styles from "./PlanPanel.module.css";
import { type Estimate, missing } from "./queries";
import { SubmitButton } from "./SubmitButton";
import { axesSummary, isCountedByServer, jobCount, sweepOf, sweepSummary, sweptKeys } from "./sweep";
import type { SubmitState } from "./use-submit";

interface PlanPanelProps {
  form: Form;
  submission: SubmitState;
  command: Command;
  found: Estimate | null;
  /** Whether the estimate matches the current draft. */
  isFresh: boolean;
  folderProblem: string | null;
  /** Next to the submit button. */
  children?: ReactNode;
}

/** Below the form: previews, warnings and options, and a bar with the summary and the submit button. */
export function PlanPanel({ form, submission, command, found, isFresh, folderProblem, children }: PlanPanelProps) {
  const { choice, draft } = form;
  const { desk } = useSession();
  const { data: queue } = useQuery(counts);
  const lists = sweepOf(choice, draft);
  const files = draft.folder === null ? lists.files.length : (found?.input_count ?? 0);
  const isCounting = isCountedByServer(choice, draft);
  const count = isCounting ? (found?.jobs ?? jobCount(lists, files)) : jobCount(lists);
  const isUnknown = isCounting && !isFresh;
  const isSweep = isCounting && (draft.folder === null || sweptKeys(choice, draft).length > 0);
  const product =
    isSweep && found ? axesSummary(found.axes) : sweepSummary(lists, primaryOf(choice)?.type ?? "", files);
  const missing = missingFileInput(choice, draft);
  const made = folderProblem ? texts.plan.noFolder : isUnknown ? texts.plan.counting : texts.plan.jobs(count);
  const isTrying =
    desk !== null &&
    (desk.simulated_jobs === "everything" || (desk.simulated_jobs === "examples" && choice.kind === "effect"));
  return (
    <aside className={styles.plan} aria-label={texts.plan.title} data-plan>
      {choice.isScript ? (
        <CommandPreview command={command} prompts={lists.prompts.length} />
      ) : (
        <JobPreview form={form} count={count} found={found} />
      )}
      {found?.warnings.map((each) => (
        <Warning key={each.name} name={each.name} text={each.text} />
      ))}
      {choice.waiting ? (
        <ErrorCard tone="warn" title={texts.form.waiting}>
          {choice.waiting}
        </ErrorCard>
      ) : (
        <MissingCard choice={choice} found={found} submission={submission} />
      )}
      {form.problems.items && <ErrorCard title={form.problems.items} />}
      {isTrying && (
        <p className={styles.simulator}>
          <Info aria-hidden />
          <span>
            {texts.plan.simulator}. {texts.plan.simulatorAdvice}
          </span>
        </p>
      )}
      <BatchOptions form={form} root={desk?.output_folder ?? null} />
      <div className={styles.submit}>
        {submission.problem && !submission.missing && !form.problems.items && (
          <div className={styles.problem}>
            <ErrorCard tone={submission.isConfirming ? "warn" : "bad"} title={submission.problem} />
          </div>
        )}
        <div className={styles.summary} aria-live="polite">
          {/* the button names a missing file */}
          {missing ? (
            submission.price !== null && <p className={styles.cost}>{texts.plan.tokens(submission.price)}</p>
          ) : (
            <>
              <p className={styles.product}>
                {product && count > 1 && !folderProblem && !isUnknown ? texts.plan.equals(product, made) : made}
              </p>
              <p className={styles.cost}>
                {costOf(found, choice.tokens * count, submission.price, choice.hasFixedPrice || desk !== null)}
              </p>
            </>
          )}
        </div>
        {children}
        <SubmitButton
          form={form}
          submission={submission}
          command={command}
          count={isUnknown ? null : count}
          isMissing={Boolean(found?.missing)}
          folderProblem={folderProblem}
          isPaused={Boolean(queue?.pausedAt)}
        />
      </div>
    </aside>
  );
}

function costOf(found: Estimate | null, lowest: number, price: number | null, isFixed: boolean): string {
  const { plan } = texts;
  const tokens = price ?? found?.tokens ?? lowest;
  const seconds = found?.expected_seconds ?? null;
  const parts = [
    seconds !== null
      ? plan.about(seconds, found?.fastest_seconds ?? null, found?.slowest_seconds ?? null)
      : found?.workers === 0
        ? plan.noWorker
        : plan.unknownTime,
    seconds !== null && found && plan.atOnce(found.workers),
    found?.done_at && plan.doneBy(found.done_at),
    // hide tokens if everything is free
    tokens > 0 && (isFixed || price !== null ? plan.tokens(tokens) : plan.tokensFrom(tokens)),
  ];
  return parts.filter(Boolean).join(" · ");
}

function Warning({ name, text }: { name: string; text: string }) {
  const rest = text.startsWith(name) ? text.slice(name.length) : ` ${text}`;
  return (
    <p className={styles.warning} role="status">
      <strong>{name}</strong>
      {rest}
    </p>
  );
}

function MissingCard({
  choice,
  found,
  submission,
}: {
  choice: Choice;
  found: Estimate | null;
  submission: SubmitState;
}) {
  const { data: usual } = useQuery(missing(choice));
  // the estimate knows the filled-in values
  const items = submission.missing ?? (found ? found.missing : usual)?.items ?? [];
  if (!items.length) return null;
  return (
    <ErrorCard tone="warn" title={texts.plan.missingTitle}>
      <ul className={missingStyles.missing}>
        {items.map((each) => (
          <li key={`${each.kind} ${each.name}`}>
            {each.kind === "model" ? <Cuboid aria-hidden /> : <Boxes aria-hidden />}
            <code>{each.name}</code>
            <span>
              {texts.plan.kinds[each.kind] ?? each.kind}
              {each.source && (each.kind === "node" ? texts.plan.package : texts.plan.source)(each.source)}
            </span>
          </li>
        ))}
      </ul>
      <p>{texts.plan.missingAdvice}</p>
    </ErrorCard>
  );
}
