import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { entry, me } from "@/api/queries";
import { buttonClass } from "@/kit";
import { LoadingPage } from "@/kit/LoadingPage";
import { useDocumentTitle } from "@/lib/document-title";
import { common } from "@/texts/common";
import { entry as entryTexts } from "@/texts/entry";
import { setup as texts } from "@/texts/setup";
import { AdministratorStep } from "./AdministratorStep";
import type { Stage } from "./create";
import { EffectStep } from "./EffectStep";
import { FleetStep } from "./FleetStep";
import { JobStep } from "./JobStep";
import { effects, fleets, newestJob, workers } from "./queries";
import { SetupFrame, STEPS, type Step } from "./SetupFrame";
import { StorageStep } from "./StorageStep";
import { WorkerStep } from "./WorkerStep";

const isStep = (text: string | undefined): text is Step => STEPS.some((each) => each === text);

export default function Setup() {
  useDocumentTitle(texts.title);
  const { step: wanted } = useSearch({ from: "/setup" });
  const navigate = useNavigate({ from: "/setup" });
  const { data: found } = useQuery(entry);
  const { data: user, error } = useQuery({ ...me, enabled: found?.needs_setup === false, retry: false });
  const isAdmin = user?.is_admin === true;
  const { data: fleet } = useQuery({ ...fleets, enabled: isAdmin });
  const { data: worker } = useQuery({ ...workers, enabled: isAdmin });
  const { data: effect } = useQuery({ ...effects, enabled: isAdmin });
  const { data: job } = useQuery({ ...newestJob, enabled: isAdmin });

  if (!found) return <LoadingPage />;
  if (found.needs_setup) {
    return (
      <SetupFrame step="admin" done={new Set()}>
        <AdministratorStep />
      </SetupFrame>
    );
  }
  if (!isAdmin) {
    if (!error && !user) return <LoadingPage />;
    return (
      <SetupFrame>
        <h2>{texts.isSetUp}</h2>
        <p>{error ? texts.isSetUpAdvice : texts.notYours}</p>
        <Link to={error ? "/sign-in" : "/"} className={buttonClass({ look: "primary" })}>
          {error ? entryTexts.signIn.title : common.name}
        </Link>
      </SetupFrame>
    );
  }
  if (!fleet || !worker || !effect || job === undefined) return <LoadingPage />;

  const done = new Set<Step>(["admin"]);
  if (fleet.length) done.add("storage").add("fleet");
  if (worker.length) done.add("worker");
  if (effect.length) done.add("effect");
  if (job?.status === "completed") done.add("job");
  // never skips ahead of the finished steps, so that the user sees when the worker appears
  const step = isStep(wanted) && wanted !== "admin" ? wanted : (STEPS.find((each) => !done.has(each)) ?? "job");
  const go = (next: Step) => void navigate({ search: { step: next } });
  const [first] = fleet;
  return (
    <SetupFrame step={step} done={done} onStep={go}>
      {step === "storage" && <StorageStep onDone={() => go("fleet")} />}
      {step === "fleet" && (
        <FleetStep stage={found.stage as Stage} existing={first?.slug} onDone={() => go("worker")} />
      )}
      {step === "worker" && first && <WorkerStep fleet={first} workers={worker} onDone={() => go("effect")} />}
      {step === "effect" && (
        <EffectStep tenantId={user.tenant_id} existing={effect[0]?.name} onDone={() => go("job")} />
      )}
      {step === "job" && effect[0] && <JobStep effectId={effect[0].id} existing={job?.id} />}
    </SetupFrame>
  );
}
