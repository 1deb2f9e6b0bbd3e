import { Link } from "@tanstack/react-router";
import { Facts } from "@/kit/Facts";
import { console as shared } from "@/texts/console";
import { worker as texts } from "@/texts/console-workers";
import type { WorkerDetails } from "../queries/workers";
import { Panel, TimeAgo } from "../shared/panels";

export function WorkerFacts({ worker }: { worker: WorkerDetails }) {
  const { facts } = texts;
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
          [facts.lastSeen, <TimeAgo key="seen" at={worker.last_seen_at} />],
          [facts.version, worker.version],
          [facts.protocol, worker.protocol],
          [facts.comfyui, worker.comfyui_versions.join(", ") || null],
          [facts.note, worker.comfyui_note],
          [facts.how, texts.proofs[worker.registration.proof] ?? worker.registration.proof],
          [facts.decision, decisionOf(worker.registration)],
          [facts.registered, shared.moment(worker.created_at)],
          [facts.machine, worker.machine?.provider_id ?? worker.machine?.key],
          [facts.type, worker.instance_type],
          [facts.price, worker.machine?.price_per_hour == null ? null : shared.money(worker.machine.price_per_hour)],
          [facts.why, worker.machine?.reason],
          [facts.capacity, worker.capacity_type],
          [facts.slots, worker.max_concurrency],
          [facts.nodes, worker.node_count],
          [facts.models, worker.model_count],
        ]}
      />
    </Panel>
  );
}

const decisionOf = ({ decision, decided_by, decided_at }: WorkerDetails["registration"]): string | null =>
  decision && decided_at
    ? texts.decidedBy(texts.decided[decision] ?? decision, decided_by ?? null, shared.at(decided_at))
    : null;
