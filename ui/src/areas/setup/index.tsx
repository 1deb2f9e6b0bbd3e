import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { Check } from "lucide-react";
import type { ReactNode } from "react";
import { entry, me } from "@/api/queries";
import { buttonClass, Toasts } from "@/kit";
import { LoadingPage } from "@/kit/LoadingPage";
import { Logo } from "@/kit/Logo";
import { useDocumentTitle } from "@/lib/document-title";
import { common } from "@/texts/common";
import { entry as entryTexts } from "@/texts/entry";
import { setup as texts } from "@/texts/setup";
import { Administrator } from "./Administrator";
import { effects, fleets, newestJob, workers } from "./data";
import styles from "./setup.module.css";
import { FirstEffect, FirstFleet, FirstJob, FirstWorker, type Stage, Storage } from "./steps";

const STEPS = ["admin", "storage", "fleet", "worker", "effect", "job"] as const;
type Step = (typeof STEPS)[number];

const isStep = (text: string | undefined): text is Step => STEPS.some((each) => each === text);

export default function Setup() {
  useDocumentTitle(texts.title);
  const { step: wanted } = useSearch({ from: "/setup" });
  const navigate = useNavigate({ from: "/setup" });
  const { data: found } = useQuery(entry);
  const { data: who, error } = useQuery({ ...me, enabled: found?.needs_setup === false, retry: false });
  const isAdmin = who?.is_admin === true;
  const { data: fleet } = useQuery({ ...fleets, enabled: isAdmin });
  const { data: worker } = useQuery({ ...workers, enabled: isAdmin });
  const { data: effect } = useQuery({ ...effects, enabled: isAdmin });
  const { data: job } = useQuery({ ...newestJob, enabled: isAdmin });

  if (!found) return <LoadingPage />;
  if (found.needs_setup) {
    return (
      <Frame step="admin" done={new Set()}>
        <Administrator />
      </Frame>
    );
  }
  if (!isAdmin) {
    if (!error && !who) return <LoadingPage />;
    return (
      <Frame>
        <h2>{texts.isSetUp}</h2>
        <p>{error ? texts.isSetUpAdvice : texts.notYours}</p>
        <Link to={error ? "/sign-in" : "/"} className={buttonClass({ look: "primary" })}>
          {error ? entryTexts.signIn.title : common.name}
        </Link>
      </Frame>
    );
  }
  if (!fleet || !worker || !effect || job === undefined) return <LoadingPage />;

  const done = new Set<Step>(["admin"]);
  if (fleet.length) done.add("storage").add("fleet");
  if (worker.length) done.add("worker");
  if (effect.length) done.add("effect");
  if (job?.status === "completed") done.add("job");
  // by itself it goes no further than what is done, so that a worker that appears is seen
  const step = isStep(wanted) && wanted !== "admin" ? wanted : (STEPS.find((each) => !done.has(each)) ?? "job");
  const go = (next: Step) => void navigate({ search: { step: next } });
  const [first] = fleet;
  return (
    <Frame step={step} done={done} onStep={go}>
      {step === "storage" && <Storage onDone={() => go("fleet")} />}
      {step === "fleet" && <FirstFleet stage={found.stage as Stage} known={first?.slug} onDone={() => go("worker")} />}
      {step === "worker" && first && <FirstWorker fleet={first} workers={worker} onDone={() => go("effect")} />}
      {step === "effect" && <FirstEffect tenantId={who.tenant_id} known={effect[0]?.name} onDone={() => go("job")} />}
      {step === "job" && effect[0] && <FirstJob effectId={effect[0].id} known={job?.id} />}
    </Frame>
  );
}

interface FrameProps {
  step?: Step;
  done?: ReadonlySet<Step>;
  onStep?: (step: Step) => void;
  children: ReactNode;
}

function Frame({ step, done, onStep, children }: FrameProps) {
  return (
    <main className={styles.page}>
      <header className={styles.brand}>
        <Logo size={32} />
        <h1>{texts.title}</h1>
      </header>
      <div className={styles.columns}>
        {step && done && (
          <ol className={styles.steps} aria-label={texts.stepsName}>
            {STEPS.map((each, number) => (
              <li key={each} aria-current={each === step ? "step" : undefined} data-done={done.has(each) || undefined}>
                <button
                  type="button"
                  disabled={!onStep || !done.has(each) || each === "admin"}
                  onClick={() => onStep?.(each)}
                >
                  <span className={styles.number} aria-hidden>
                    {done.has(each) ? <Check /> : number + 1}
                  </span>
                  {texts.steps[each]}
                  {done.has(each) && <span className={styles.unseen}>, {texts.done}</span>}
                </button>
              </li>
            ))}
          </ol>
        )}
        <section className={styles.card}>
          {step && <h2>{texts.steps[step]}</h2>}
          {children}
        </section>
      </div>
      <Toasts />
    </main>
  );
}
