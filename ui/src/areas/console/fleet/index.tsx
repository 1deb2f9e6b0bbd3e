import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { Pause, Play, Plus, RotateCcw, Trash2 } from "lucide-react";
import { useState } from "react";
import { post, remove } from "@/api/client";
import { Button, buttonClass, Chip, IconButton, toast, toastProblem } from "@/kit";
import { Header } from "@/kit/Header";
import { Tabs } from "@/kit/Tabs";
import { console as shared } from "@/texts/console";
import { fleet as texts } from "@/texts/console-fleets";
import { FleetStateBadge } from "../fleets/FleetStateBadge";
import { isScaled } from "../fleets/rules";
import { isBroken } from "../overview/rules";
import { type Fleet, fleet as fleetQuery, type Scaling, type Stage, scaling as scalingQuery } from "../queries/fleets";
import { consoleKeys } from "../shared/live";
import { BackLink, Confirm, LoadingOrError } from "../shared/panels";
import { Costs } from "./Costs";
import { Decisions } from "./Decisions";
import { EndedMachines } from "./EndedMachines";
import styles from "./fleet.module.css";
import { Now } from "./Now";
import { ScalingForm } from "./ScalingForm";
import { WorkflowsForm } from "./WorkflowsForm";

export default function FleetPage() {
  const { stage, slug } = useParams({ from: "/console/fleets/$stage/$slug" });
  const search = useSearch({ from: "/console/fleets/$stage/$slug" });
  const navigate = useNavigate({ from: "/console/fleets/$stage/$slug" });
  const { data: fleet, error } = useQuery(fleetQuery(stage, slug));
  const { data: how } = useQuery(scalingQuery(stage, slug));
  const tab = search.tab && search.tab in texts.tabs ? search.tab : "now";
  return (
    <>
      <Header
        title={fleet ? fleet.name || fleet.slug : slug}
        actions={fleet && <Actions fleet={fleet} scaling={how} />}
      >
        <Chip>{shared.stages[stage] ?? stage}</Chip>
        {fleet && <FleetStateBadge fleet={fleet} scaling={how} />}
      </Header>
      <BackLink to="/console/fleets" page={shared.pages.fleets} />
      <div className={styles.page}>
        {fleet ? (
          <Tabs
            name={texts.tabsName}
            value={tab}
            onChange={(next) =>
              void navigate({
                search: (before) => ({ ...before, tab: next === "now" ? "" : next }),
                replace: true,
              })
            }
            tabs={[
              { value: "now", name: texts.tabs.now, content: <Now fleet={fleet} /> },
              { value: "workflows", name: texts.tabs.workflows, content: <WorkflowsForm fleet={fleet} /> },
              { value: "autoscaling", name: texts.tabs.autoscaling, content: <ScalingForm fleet={fleet} /> },
              { value: "decisions", name: texts.tabs.decisions, content: <Decisions fleet={fleet} /> },
              { value: "machines", name: texts.tabs.machines, content: <EndedMachines fleet={fleet} /> },
              { value: "costs", name: texts.tabs.costs, content: <Costs fleet={fleet} /> },
            ]}
          />
        ) : (
          <LoadingOrError error={error} gone={texts.gone} />
        )}
      </div>
    </>
  );
}

function Actions({ fleet, scaling }: { fleet: Fleet; scaling: Scaling | undefined }) {
  const path = { stage: fleet.stage as Stage, slug: fleet.slug };
  const client = useQueryClient();
  const navigate = useNavigate();
  const [isDeleting, setDeleting] = useState(false);
  const isPaused = fleet.autoscaling?.is_paused ?? false;
  const name = fleet.name || fleet.slug;
  const again = () =>
    Promise.all([
      client.invalidateQueries({ queryKey: consoleKeys.fleet(fleet.stage, fleet.slug) }),
      client.invalidateQueries({ queryKey: consoleKeys.fleets }),
    ]);
  const pause = useMutation({
    mutationFn: () =>
      isPaused
        ? post("/api/admin/fleets/{stage}/{slug}/resume", { path })
        : post("/api/admin/fleets/{stage}/{slug}/pause", { path }),
    onSuccess: async ({ data }) => {
      toast({ text: data.is_paused ? texts.paused : texts.resumed, tone: "good", topic: "pause" });
      await again();
    },
    onError: toastProblem,
  });
  const reset = useMutation({
    mutationFn: () => post("/api/admin/fleets/{stage}/{slug}/reset-launches", { path }),
    onSuccess: async () => {
      toast({ text: texts.launchesReset, tone: "good", topic: "reset" });
      await again();
    },
    onError: toastProblem,
  });
  const end = useMutation({
    mutationFn: () => remove("/api/admin/fleets/{stage}/{slug}", { path }),
    onSuccess: async () => {
      toast({ text: texts.deleted(name), tone: "good" });
      await navigate({ to: "/console/fleets" });
      client.removeQueries({ queryKey: consoleKeys.fleet(fleet.stage, fleet.slug) });
      await client.invalidateQueries({ queryKey: consoleKeys.fleets });
    },
    onError: (thrown) => {
      setDeleting(false);
      toastProblem(thrown);
    },
  });
  return (
    <>
      <IconButton icon={Trash2} name={texts.delete} onClick={() => setDeleting(true)} />
      {isBroken(fleet, scaling) && (
        <Button icon={RotateCcw} isBusy={reset.isPending} title={texts.resetHint} onClick={() => reset.mutate()}>
          {texts.reset}
        </Button>
      )}
      {(isScaled(fleet) || isPaused) && (
        <Button icon={isPaused ? Play : Pause} isBusy={pause.isPending} onClick={() => pause.mutate()}>
          {isPaused ? texts.resume : texts.pause}
        </Button>
      )}
      <Link
        to="/console/workers"
        search={{ open: "add", fleet: fleet.slug, stage: fleet.stage }}
        className={buttonClass({ look: "primary" })}
      >
        <Plus aria-hidden />
        {texts.addWorker}
      </Link>
      <Confirm
        isOpen={isDeleting}
        onClose={() => setDeleting(false)}
        title={texts.deleteTitle(name)}
        about={texts.deleteAbout}
        action={texts.delete}
        isDanger
        isBusy={end.isPending}
        onConfirm={() => end.mutate()}
      />
    </>
  );
}
