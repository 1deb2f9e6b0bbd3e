import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useParams } from "@tanstack/react-router";
import { Ban, CircleCheck, KeyRound, Pause, Play, TriangleAlert } from "lucide-react";
import { useState } from "react";
import { Button, Dialog, Progress, toast, toastProblem } from "@/kit";
import { Header } from "@/kit/Header";
import { Facts } from "@/kit/Facts";
import { useKeys } from "@/lib/keyboard";
import { size } from "@/texts/common";
import { console as shared } from "@/texts/console";
import { workers as many, worker as texts } from "@/texts/console-workers";
import { doToWorker, type Gpu, type WorkerDetails, type WorkerJob, worker as workerQuery } from "../data";
import { consoleKeys } from "../live";
import { BackLink, Confirm, Copyable, Panel, Seen, useNow, Waiting } from "../parts";
import { StateOf } from "../workers";
import { blocksOf, called, howOf, inOrder, isNext, nameOf, partOf } from "../workers/rules";
import { Audit } from "./Audit";
import { Logs } from "./Logs";
import styles from "./worker.module.css";

export default function WorkerPage() {
  const { id } = useParams({ from: "/console/workers/$id" });
  const { data: worker, error } = useQuery(workerQuery(id));
  return (
    <div className={styles.page}>
      <Header title={worker ? nameOf(worker) : id} actions={worker && <Actions worker={worker} />}>
        {worker && <StateOf state={worker.state} />}
      </Header>
      <BackLink to="/console/workers" page={shared.pages.workers} />
      <div className={styles.columns}>
        {worker ? (
          <>
            <div className={styles.column}>
              <Blocks worker={worker} />
              <Now worker={worker} />
              <Gpus gpus={worker.gpus} />
              <Logs id={id} />
              <Audit id={id} />
            </div>
            <div className={styles.column}>
              <About worker={worker} />
              <Workflows worker={worker} />
            </div>
          </>
        ) : (
          <Waiting error={error} gone={texts.gone} />
        )}
      </div>
    </div>
  );
}

type Verb = "drain" | "undrain" | "revoke" | "approve";

function Actions({ worker }: { worker: WorkerDetails }) {
  const { worker_id: id } = worker;
  const client = useQueryClient();
  const [asked, ask] = useState<"revoke" | "rotate" | null>(null);
  const [token, setToken] = useState<string | null>(null);
  const again = () =>
    Promise.all([
      client.invalidateQueries({ queryKey: consoleKeys.worker(id) }),
      client.invalidateQueries({ queryKey: consoleKeys.workers }),
    ]);
  const act = useMutation({
    mutationFn: (verb: Verb) => doToWorker[verb](id),
    onSuccess: async ({ data }, verb) => {
      client.setQueryData(workerQuery(id).queryKey, data as WorkerDetails);
      ask(null);
      toast({ text: texts.did[verb], tone: "good", topic: id });
      await again();
    },
    onError: toastProblem,
  });
  const rotate = useMutation({
    mutationFn: () => doToWorker.rotate(id),
    onSuccess: async ({ data }) => {
      ask(null);
      setToken(data.token);
      await again();
    },
    onError: toastProblem,
  });
  const name = nameOf(worker);
  const drainOrNot = worker.is_draining ? "undrain" : "drain";
  useKeys([
    { keys: "d", name: texts.actions[drainOrNot], group: shared.pages.worker, run: () => act.mutate(drainOrNot) },
  ]);
  return (
    <>
      <Button
        icon={worker.is_draining ? Play : Pause}
        isBusy={act.isPending && act.variables === drainOrNot}
        onClick={() => act.mutate(drainOrNot)}
      >
        {texts.actions[drainOrNot]}
      </Button>
      <Button icon={KeyRound} onClick={() => ask("rotate")}>
        {texts.actions.rotate}
      </Button>
      {worker.is_approved ? (
        <Button look="danger" icon={Ban} onClick={() => ask("revoke")}>
          {texts.actions.revoke}
        </Button>
      ) : (
        <Button
          look="primary"
          icon={CircleCheck}
          isBusy={act.isPending && act.variables === "approve"}
          onClick={() => act.mutate("approve")}
        >
          {texts.actions.approve}
        </Button>
      )}
      <Confirm
        isOpen={asked === "revoke"}
        onClose={() => ask(null)}
        title={texts.confirm.revokeTitle(name)}
        about={texts.confirm.revokeAbout(worker.leases)}
        action={texts.actions.revoke}
        isDanger
        isBusy={act.isPending}
        onConfirm={() => act.mutate("revoke")}
      />
      <Confirm
        isOpen={asked === "rotate"}
        onClose={() => ask(null)}
        title={texts.confirm.rotateTitle(name)}
        about={texts.confirm.rotateAbout}
        action={texts.confirm.rotateAction}
        isBusy={rotate.isPending}
        onConfirm={() => rotate.mutate()}
      />
      {/* it is nowhere else: closing the dialog forgets it */}
      <Dialog
        isOpen={token !== null}
        isFirm
        title={texts.token.title}
        about={texts.token.about}
        actions={
          <Button look="primary" onClick={() => setToken(null)}>
            {texts.token.done}
          </Button>
        }
      >
        {token !== null && <Copyable name={texts.token.name} text={token} />}
      </Dialog>
    </>
  );
}

function Blocks({ worker }: { worker: WorkerDetails }) {
  const now = useNow();
  const found = blocksOf(worker, now);
  return (
    <Panel title={texts.blocks.title}>
      <ul className={styles.blocks}>
        {found.map(({ tone, text }) => (
          <li key={text} data-tone={tone}>
            <TriangleAlert aria-hidden />
            {text}
          </li>
        ))}
        {found.length === 0 && (
          <li data-tone="good">
            <CircleCheck aria-hidden />
            {texts.blocks.nothing}
          </li>
        )}
      </ul>
    </Panel>
  );
}

function Now({ worker }: { worker: WorkerDetails }) {
  return (
    <Panel
      title={texts.now}
      aside={<span className={styles.quiet}>{texts.slots(worker.leases, worker.max_concurrency)}</span>}
    >
      {worker.jobs.length === 0 && <p className={styles.quiet}>{texts.nothing}</p>}
      {inOrder(worker.jobs).map((job) => (
        <JobNow key={job.dispatch_id} job={job} />
      ))}
    </Panel>
  );
}

function JobNow({ job }: { job: WorkerJob }) {
  const part = partOf(job);
  return (
    <div className={styles.job}>
      <div className={styles.jobLine}>
        <Link to="/console/dispatches" search={{ open: String(job.dispatch_id) } as never}>
          {job.workflow_slug}
        </Link>
        <span className={styles.figures}>
          {part === null ? (isNext(job) ? texts.next : many.starting) : many.percent(part)}
        </span>
      </div>
      {!isNext(job) && <Progress value={part} name={many.progress(job.workflow_slug)} />}
      <span className={styles.quiet}>
        {[howOf(job), texts.job(job.dispatch_id), texts.since(shared.at(job.leased_at))].filter(Boolean).join(" · ")}
      </span>
    </div>
  );
}

function Gpus({ gpus }: { gpus: readonly Gpu[] }) {
  return (
    <Panel title={texts.gpus}>
      {gpus.length === 0 && <p className={styles.quiet}>{texts.noGpu}</p>}
      {gpus.map((gpu, index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: two of them may be alike
        <GpuNow key={index} gpu={gpu} />
      ))}
    </Panel>
  );
}

function GpuNow({ gpu }: { gpu: Gpu }) {
  const figures = [
    gpu.memory_total ? many.memory(size(gpu.memory_used ?? 0), size(gpu.memory_total)) : "",
    typeof gpu.load === "number" ? many.load(gpu.load) : "",
  ].filter(Boolean);
  return (
    <div className={styles.slot}>
      <h3>{gpu.name ?? gpu.server ?? shared.unknown}</h3>
      <span className={styles.figures}>{figures.join(" · ")}</span>
      {gpu.memory_total ? (
        <div className={styles.meter}>
          <Progress value={(gpu.memory_used ?? 0) / gpu.memory_total} name={many.memoryName} />
        </div>
      ) : null}
      {(gpu.away || gpu.packing) && <p className={styles.quiet}>{gpu.away ?? gpu.packing}</p>}
    </div>
  );
}

function About({ worker }: { worker: WorkerDetails }) {
  const { facts } = texts;
  const nodes = worker.capabilities.node_types;
  const models = worker.capabilities.models;
  return (
    <Panel title={facts.title}>
      <Facts
        facts={[
          [facts.id, worker.worker_id],
          [
            facts.fleet,
            <Link
              key="fleet"
              to="/console/fleets/$stage/$slug"
              params={{ stage: worker.stage, slug: worker.fleet_slug }}
            >
              {worker.fleet_slug}
            </Link>,
          ],
          [facts.stage, shared.stages[worker.stage] ?? worker.stage],
          [facts.lastSeen, <Seen key="seen" at={worker.last_seen_at} />],
          [facts.version, worker.version],
          [facts.protocol, worker.protocol],
          [facts.how, texts.proofs[worker.registration.proof] ?? worker.registration.proof],
          [facts.decision, decisionOf(worker.registration)],
          [facts.registered, shared.moment(worker.created_at)],
          [facts.machine, worker.machine?.provider_id ?? worker.machine?.key],
          [facts.type, worker.instance_type],
          [facts.price, worker.machine?.price_per_hour == null ? null : shared.money(worker.machine.price_per_hour)],
          [facts.why, worker.machine?.reason],
          [facts.capacity, worker.capacity_type],
          [facts.slots, worker.max_concurrency],
          [facts.nodes, Array.isArray(nodes) ? nodes.length : null],
          [facts.models, countOf(models)],
        ]}
      />
    </Panel>
  );
}

const decisionOf = ({ decision, decided_by, decided_at }: WorkerDetails["registration"]): string | null =>
  decision && decided_at
    ? texts.decidedBy(texts.decided[decision] ?? decision, decided_by ?? null, shared.at(decided_at))
    : null;

/** Models are one list, or lists by folder. */
function countOf(models: unknown): number | null {
  if (Array.isArray(models)) return models.length;
  if (typeof models !== "object" || models === null) return null;
  return Object.values(models).reduce<number>((sum, each) => sum + (Array.isArray(each) ? each.length : 0), 0);
}

const MOST = 24;

function Workflows({ worker: { workflow_slugs: slugs, loaded } }: { worker: WorkerDetails }) {
  return (
    <>
      <Panel title={texts.loaded}>
        {loaded.length === 0 && <p className={styles.quiet}>{shared.none}</p>}
        <Names slugs={loaded.map(called)} />
      </Panel>
      <Panel title={texts.workflows}>
        {slugs.length === 0 && <p className={styles.quiet}>{texts.noWorkflows}</p>}
        <Names slugs={slugs} />
      </Panel>
    </>
  );
}

function Names({ slugs }: { slugs: readonly string[] }) {
  return (
    <div className={styles.names}>
      {slugs.slice(0, MOST).map((slug) => (
        <Link key={slug} to="/console/workflows/$slug" params={{ slug }}>
          {slug}
        </Link>
      ))}
      {slugs.length > MOST && <span className={styles.quiet}>{many.more(slugs.length - MOST)}</span>}
    </div>
  );
}
