import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { RefreshCw } from "lucide-react";
import { useState } from "react";
import { call } from "@/api/client";
import { Problem, sentence } from "@/api/problem";
import { Button, Chip, Dialog, Switch, toastProblem } from "@/kit";
import { Table } from "@/kit/Table";
import { common } from "@/texts/common";
import { workflow as all } from "@/texts/console-workflows";
import { type Fleet, fitting, fleets, keys, type WorkerCheck } from "../catalogue/queries";
import { MissingList } from "../catalogue/use-workflow-import";
import { Facts, QueryResult, Section, State, sheet, type Tone } from "../shared/sheet";

const texts = all.workers;
const TONES: Readonly<Record<string, Tone>> = { able: "good", unable: "bad", unknown: "warn" };

/** Availability on workers, and assigned fleets. */
export function Workers({ slug }: { slug: string }) {
  const found = useQuery(fitting(slug));
  const checkAgain = (
    <Button
      size="small"
      icon={RefreshCw}
      isBusy={found.isFetching && !found.isLoading}
      onClick={() => void found.refetch()}
    >
      {texts.again}
    </Button>
  );
  return (
    <>
      <Section title={texts.title} about={found.data?.assigned_workers ? found.data.text : null} aside={checkAgain}>
        <QueryResult query={found}>
          {({ workers }) =>
            workers.items.length ? (
              <Table<WorkerCheck>
                name={texts.title}
                rows={workers.items}
                keyOf={(each) => each.worker_id}
                columns={[
                  {
                    id: "worker",
                    name: texts.worker,
                    sort: (each) => each.worker_id,
                    show: (each) => (
                      <div className={sheet.rowName}>
                        <Link to="/console/workers/$id" params={{ id: each.worker_id }}>
                          {each.worker_id}
                        </Link>
                        <span>
                          {each.fleet_slug} · {each.stage}
                        </span>
                      </div>
                    ),
                  },
                  {
                    id: "fit",
                    name: texts.fit,
                    sort: (each) => each.fit,
                    show: (each) => <State tone={TONES[each.fit] ?? "idle"}>{texts.fits[each.fit] ?? each.fit}</State>,
                  },
                  {
                    id: "missing",
                    name: texts.missing,
                    isLong: true,
                    show: (each) =>
                      each.missing_node_types.length || each.missing_models.length ? (
                        <span className={sheet.chips}>
                          {[...each.missing_node_types, ...each.missing_models].map((name) => (
                            <Chip key={name}>{name}</Chip>
                          ))}
                        </span>
                      ) : (
                        <span className={sheet.muted}>{each.text}</span>
                      ),
                  },
                ]}
              />
            ) : (
              <p className={sheet.muted}>{texts.none}</p>
            )
          }
        </QueryResult>
      </Section>
      <Mapping slug={slug} />
      {found.data && (
        <Section title={texts.needs}>
          <Facts
            facts={[
              [texts.nodes, <Names key="nodes" names={found.data.node_types} />],
              [texts.models, <Names key="models" names={found.data.models} />],
            ]}
          />
        </Section>
      )}
    </>
  );
}

const Names = ({ names }: { names: readonly string[] }) =>
  names.length ? (
    <span className={sheet.chips}>
      {names.map((each) => (
        <Chip key={each}>{each}</Chip>
      ))}
    </span>
  ) : (
    <span className={sheet.muted}>{texts.noModels}</span>
  );

interface Change {
  fleet: Fleet;
  isOn: boolean;
  force: boolean;
}

function Mapping({ slug }: { slug: string }) {
  const client = useQueryClient();
  const found = useQuery(fleets);
  const [refused, setRefused] = useState<{ change: Change; problem: Problem } | null>(null);
  const change = useMutation({
    mutationFn: ({ fleet, isOn, force }: Change) => {
      const others = fleet.workflow_slugs.filter((each) => each !== slug);
      return call("PUT", `/api/admin/fleets/${fleet.stage}/${encodeURIComponent(fleet.slug)}/workflows`, {
        workflow_slugs: isOn ? [...others, slug] : others,
        force,
      });
    },
    onSuccess: () => setRefused(null),
    onError: (thrown, asked) => {
      if (thrown instanceof Problem && thrown.missing.length) setRefused({ change: asked, problem: thrown });
      else toastProblem(thrown);
    },
    onSettled: async () => {
      await client.invalidateQueries({ queryKey: keys.fleets });
      await client.invalidateQueries({ queryKey: keys.fitting(slug) });
    },
  });
  return (
    <Section title={all.fleets.title} about={all.fleets.about}>
      <QueryResult query={found}>
        {(groups) =>
          groups.length ? (
            <div className={sheet.form}>
              {groups.map((each) => (
                <Switch
                  key={each.id}
                  name={all.fleets.mapped(each.name || each.slug)}
                  hint={`${each.slug} · ${each.stage} · ${all.fleets.workers(each.workers)}`}
                  isOn={each.workflow_slugs.includes(slug)}
                  isDisabled={change.isPending}
                  onChange={(isOn) => change.mutate({ fleet: each, isOn, force: false })}
                />
              ))}
            </div>
          ) : (
            <p className={sheet.muted}>{all.fleets.none}</p>
          )
        }
      </QueryResult>
      {refused && (
        <Dialog
          isOpen
          onClose={() => setRefused(null)}
          title={all.fleets.forceTitle}
          about={sentence(refused.problem)}
          actions={
            <>
              <Button onClick={() => setRefused(null)}>{common.cancel}</Button>
              <Button
                look="primary"
                isBusy={change.isPending}
                onClick={() => change.mutate({ ...refused.change, force: true })}
              >
                {all.fleets.force}
              </Button>
            </>
          }
        >
          <MissingList missing={refused.problem.missing} advice="" />
        </Dialog>
      )}
    </Section>
  );
}
